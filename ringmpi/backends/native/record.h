// What is recorded of rows beside the softmax (core/record.py): with p = e^(s - m') and a = e^(m - m'),
//
//   S' = a (S + (m - m') l) + sum p (s - m')      D' = a D + sum p |i - j|      W' = a W + sum of p over first keys
//
// for score_sum, distance_sum and sink_sum, and the first key of the largest score.
#pragma once

#include "score.h"

namespace ringmpi {

// The record of a strip while it is worked on.
template <class T> struct alignas(64) RecordLanes {
  static constexpr int S = STRIP<T>;
  T score_sum[S], distance_sum[S], sink_sum[S];
  int64_t top_key[S];   // position
  int64_t offset[S];    // row position - position of key `origin` of Lanes
  T step[TILE];         // positions from the first key of a tile to each
  int64_t step_stride;  // of `step`
  int64_t sinks;

  void space_keys(int64_t stride) {
    if (stride == step_stride) return;
    step_stride = stride;
    for (int64_t k = 0; k < TILE; ++k) step[k] = T(stride * k);
  }
};

// Looks on while scores become weights, and sees nothing.
template <class T> struct Unrecorded {
  RINGMPI_INLINE void pair(int64_t, Vec<T>, Vec<T>) {}
  RINGMPI_INLINE void panel() {}
};

// Looks on for one vector, lanes `at` and on, and keys of one tile, counted from the tile. Positions are subtracted as
// integers, so what is near is exact wherever it lies; relative to the tile, so that bits depend on no other row.
template <class T> class Recorder {
  static constexpr int S = STRIP<T>, L = LANES<T>;

 public:
  RINGMPI_INLINE Recorder(RecordLanes<T>& record, const Lanes<T>& lanes, int at, int64_t tile)
      : record_(record), lanes_(lanes), at_(at), tile_(tile), floor_(exp_floor<T>()) {
    alignas(64) T base[L];
    for (int i = 0; i < L; ++i) base[i] = T(record.offset[at + i] - lanes.key_stride * tile);
    base_ = load(base);
  }

  // Key k of the tile: s - m', and the weight.
  RINGMPI_INLINE void pair(int64_t k, Vec<T> below, Vec<T> weight) {
    panel_score_ += weight * larger(floor_, below);  // weight 0 times -inf would be NaN
    const Vec<T> far = base_ - record_.step[k];
    panel_distance_ += weight * size(far);
  }
  RINGMPI_INLINE void panel() {
    score_ += panel_score_, distance_ += panel_distance_;
    panel_score_ = panel_distance_ = Vec<T>{};
  }

  // Before: the first key of score `top` among scores[k - start] of keys start <= k < stop, where none was larger yet.
  void note_top(const T* scores, int64_t start, int64_t stop, Vec<T> top, Vec<T> before) {
    const Ints<T> may = (top >= before) & (top > broadcast(-INF<T>));
    Integer<T> any = 0;
    for (int i = 0; i < L; ++i) any |= may[i];
    if (!any) return;
    Ints<T> found{};
    for (int64_t k = stop; k-- > start;) found = load(scores + (k - start) * S) == top ? Ints<T>{} + Integer<T>(k) : found;
    for (int i = 0; i < L; ++i) {
      int64_t& key = record_.top_key[at_ + i];
      const int64_t position = lanes_.key_position + lanes_.key_stride * (tile_ + found[i]);
      if (may[i] && (top[i] > before[i] || position < key)) key = position;
    }
  }

  // After, with the weights in place of scores. rescale, before, total: a, m and l; shift: m'.
  void finish(const T* weights, int64_t start, int64_t stop, Vec<T> rescale, Vec<T> before, Vec<T> shift, Vec<T> total) {
    const Vec<T> fall = larger(floor_, before - shift);  // finite where nothing was carried: then l is 0
    T *const score = record_.score_sum + at_, *const distance = record_.distance_sum + at_;
    T* const sink = record_.sink_sum + at_;
    store(score, rescale * (load(score) + fall * total) + score_);
    store(distance, rescale * load(distance) + distance_);
    Vec<T> on_sinks{};
    const int64_t last = std::min(stop, first_beyond_sinks());
    for (int64_t k = start; k < last; ++k) on_sinks += load(weights + (k - start) * S);
    store(sink, rescale * load(sink) + on_sinks);
  }

 private:
  static RINGMPI_INLINE Vec<T> size(Vec<T> x) {  // without the bit of the sign
    return reinterpret_cast<Vec<T>>(reinterpret_cast<Ints<T>>(x) & std::numeric_limits<Integer<T>>::max());
  }
  int64_t first_beyond_sinks() const {
    return ceil_div(record_.sinks - lanes_.key_position, lanes_.key_stride) - tile_;
  }

  RecordLanes<T>& record_;
  const Lanes<T>& lanes_;
  const int at_;
  const int64_t tile_;
  const Vec<T> floor_;
  Vec<T> base_, score_{}, distance_{}, panel_score_{}, panel_distance_{};
};

}  // namespace ringmpi
