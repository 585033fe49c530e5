// A strip: rows of queries side by side in the lanes of three vectors, from memory and back.
#pragma once

#include "ahead.h"
#include "record.h"
#include "threads.h"

namespace ringmpi {

// The rows of a strip while they are worked on: everything as columns of lanes.
template <class T> struct Strip {
  static constexpr int S = STRIP<T>;
  T *query, *sum, *scores;     // [head_dim][S], [columns][S], [TILE][S]
  T *row_max, *total;          // [S]
  T* wide;                     // [S][max(head_dim, columns)]
  Lanes<T>* lanes;
  RecordLanes<T>* record;          // null where rows are not recorded
  int live;                        // lanes in use
  int64_t batch, row[S], head[S];  // whose they are
  Ahead ahead;                     // the rows of the strip that this thread is likely to take next
};

// The rows of one call. Lane x of a key head stands for row x / group of its query head x % group: heads that share
// keys lie side by side, so a strip of them reaches over fewer positions.
template <class T> class Rows {
  static constexpr int S = STRIP<T>;

 public:
  explicit Rows(const Forward& call)
      : call_(call), p_(call.problem), columns_(padded(p_.value_dim, ROWS)), lanes_(p_.queries * p_.group()) {}

  int64_t lanes() const { return lanes_; }
  int64_t strips() const { return (lanes_ + S - 1) / S; }

  // A strip in scratch memory.
  Strip<T> strip_in(Buffer& scratch) const {
    const int64_t widest = std::max<int64_t>(S, ROWS) * std::max(p_.head_dim, columns_);
    const int64_t sizes[] = {p_.head_dim * S, columns_ * S, TILE * S, S, S, widest};
    const int64_t lanes = int64_t(sizeof(Lanes<T>) / sizeof(T)), record = int64_t(sizeof(RecordLanes<T>) / sizeof(T));
    int64_t total = lanes + record;
    for (int64_t size : sizes) total += padded(size, 64);
    T* next = scratch.take<T>(total);
    Strip<T> strip;
    T** const arrays[] = {&strip.query, &strip.sum, &strip.scores, &strip.row_max, &strip.total, &strip.wide};
    for (int i = 0; i < 6; ++i) *arrays[i] = next, next += padded(sizes[i], 64);
    strip.lanes = new (next) Lanes<T>;
    strip.record = call_.record.wanted() ? new (next + lanes) RecordLanes<T> : nullptr;
    return strip;
  }

  // The rows of the strip that begins with lane x of a key head; none beyond the last.
  Ahead ahead(int64_t batch, int64_t key_head, int64_t x) const {
    const int64_t g = p_.group(), row = x / g, end = (std::min(x + S, lanes_) + g - 1) / g;
    const int64_t query_bytes = p_.head_dim * (p_.dtype == FLOAT64 ? 8 : p_.dtype == FLOAT32 ? 4 : 2);
    return {{{&p_.q, query_bytes}, {&call_.weighted_sum, p_.value_dim * int64_t(sizeof(T))}, {}},
            batch, key_head * g, g, row, end};
  }

  // The rows of a strip, the first of them lane x of a key head. `next`: that of the strip to ask for meanwhile.
  void load(Strip<T>& strip, int64_t batch, int64_t key_head, int64_t x, int64_t next) const {
    strip.ahead = ahead(batch, key_head, next);
    const int64_t g = p_.group(), d = p_.head_dim, dv = p_.value_dim;
    strip.live = int(std::min<int64_t>(S, lanes_ - x)), strip.batch = batch;
    int64_t row = x / g, within = x % g;
    for (int i = 0; i < strip.live; ++i) {
      strip.row[i] = row, strip.head[i] = key_head * g + within;
      if (++within == g) within = 0, ++row;
    }
    for (int i = 0; i < strip.live; ++i) prefetch<T>(row_at(p_.q, strip, i), d);
    for (int i = 0; i < strip.live; ++i) prefetch<T>(row_at(call_.weighted_sum, strip, i), dv);  // written by `store`
    const T* rows[S];
    const auto spare = [&](int i) { return strip.wide + i * std::max(d, dv); };
    for (int i = 0; i < S; ++i) {
      rows[i] = spare(i);
      if (i < strip.live) rows[i] = read(row_at(p_.q, strip, i), p_.q.stride[3], d, p_.dtype, spare(i));
      else std::fill(spare(i), spare(i) + d, T(0));
    }
    gather_rows<T>(rows, S, d, strip.query, S, Scorer<T>{p_}.factor());
    std::fill(strip.row_max, strip.row_max + S, -INF<T>);
    std::fill(strip.total, strip.total + S, T(0));
    if (strip.record) load_record(strip);
    bool fresh = true;
    for (int i = 0; i < strip.live; ++i) {
      std::memcpy(strip.row_max + i, row_at(call_.row_max, strip, i), sizeof(T));
      std::memcpy(strip.total + i, row_at(call_.row_sum, strip, i), sizeof(T));
      fresh = fresh && strip.row_max[i] == -INF<T>;
    }
    if (fresh) return std::fill(strip.sum, strip.sum + columns_ * S, T(0));  // nothing is carried: zeros, unread
    for (int i = 0; i < S; ++i) {
      rows[i] = spare(i);
      if (i < strip.live)
        rows[i] = read(row_at(call_.weighted_sum, strip, i), call_.weighted_sum.stride[3], dv, DTYPE<T>, spare(i));
      else std::fill(spare(i), spare(i) + dv, T(0));
    }
    gather_rows<T>(rows, S, dv, strip.sum, S);
    std::fill(strip.sum + dv * S, strip.sum + columns_ * S, T(0));
  }

  void store(const Strip<T>& strip) const {
    const int64_t dv = p_.value_dim, step = call_.weighted_sum.stride[3];
    T* rows[S];
    for (int i = 0; i < S; ++i) {
      char* const row = i < strip.live ? row_at(call_.weighted_sum, strip, i) : nullptr;
      rows[i] = row && lies_as<T>(row, step) ? reinterpret_cast<T*>(row) : strip.wide + i * dv;
    }
    scatter_rows<T>(strip.sum, S, S, dv, rows);
    if (strip.record) store_record(strip);
    for (int i = 0; i < strip.live; ++i) {
      std::memcpy(row_at(call_.row_max, strip, i), strip.row_max + i, sizeof(T));
      std::memcpy(row_at(call_.row_sum, strip, i), strip.total + i, sizeof(T));
      char* const row = row_at(call_.weighted_sum, strip, i);
      if (!lies_as<T>(row, step)) narrow(rows[i], dv, row, step);
    }
  }

  // Which of the `length` keys from local key `start` on each lane sees, and where it stands in the whole sequence.
  void describe(const Strip<T>& strip, const Item& item, int from, int to, int64_t start,
                int64_t length) const {
    Lanes<T>& lanes = *strip.lanes;
    std::fill(lanes.start, lanes.start + S, Integer<T>(0));
    std::fill(lanes.stop, lanes.stop + S, Integer<T>(0));
    lanes.key_position = item.key_position(start), lanes.key_stride = item.key_stride;
    lanes.batch = uint32_t(strip.batch);
    if (strip.record) {
      strip.record->space_keys(item.key_stride);
      std::fill(strip.record->offset, strip.record->offset + S, int64_t(0));
    }
    int64_t row = -1, low = 0, high = 0;
    for (int lane = from; lane < to; ++lane) {
      if (strip.row[lane] != row) {
        row = strip.row[lane];
        const Keys keys = keys_of(item, row);
        low = std::clamp<int64_t>(keys.start - start, 0, length);
        high = std::clamp<int64_t>(keys.stop - start, low, length);
      }
      lanes.start[lane] = Integer<T>(low), lanes.stop[lane] = Integer<T>(high);
      if (strip.record) strip.record->offset[lane] = item.row_position(row) - lanes.key_position;
      if (p_.slopes || p_.dropout_least) {
        const int64_t head = strip.head[lane], position = item.row_position(row);
        lanes.slope[lane] = p_.slopes ? T(p_.slopes[head]) : T(0);
        lanes.distance[lane] = T(position - lanes.key_position);
        lanes.row[lane] = uint32_t(position), lanes.head[lane] = uint32_t(head);
      }
    }
  }

 private:
  void load_record(Strip<T>& strip) const {
    RecordLanes<T>& record = *strip.record;
    record.sinks = call_.record.sinks, record.step_stride = 0;
    std::fill(record.top_key, record.top_key + S, int64_t(-1));
    for (T* sums : {record.score_sum, record.distance_sum, record.sink_sum}) std::fill(sums, sums + S, T(0));
    for (int i = 0; i < strip.live; ++i) {
      std::memcpy(record.score_sum + i, row_at(call_.record.score_sum, strip, i), sizeof(T));
      std::memcpy(record.distance_sum + i, row_at(call_.record.distance_sum, strip, i), sizeof(T));
      std::memcpy(record.sink_sum + i, row_at(call_.record.sink_sum, strip, i), sizeof(T));
      std::memcpy(record.top_key + i, row_at(call_.record.top_key, strip, i), sizeof(int64_t));
    }
  }

  void store_record(const Strip<T>& strip) const {
    const RecordLanes<T>& record = *strip.record;
    for (int i = 0; i < strip.live; ++i) {
      std::memcpy(row_at(call_.record.score_sum, strip, i), record.score_sum + i, sizeof(T));
      std::memcpy(row_at(call_.record.distance_sum, strip, i), record.distance_sum + i, sizeof(T));
      std::memcpy(row_at(call_.record.sink_sum, strip, i), record.sink_sum + i, sizeof(T));
      std::memcpy(row_at(call_.record.top_key, strip, i), record.top_key + i, sizeof(int64_t));
    }
  }

  static char* row_at(const Array& array, const Strip<T>& strip, int lane) {
    return array.row(strip.batch, strip.head[lane], strip.row[lane]);
  }

  const Forward& call_;
  const Problem& p_;
  const int64_t columns_, lanes_;
};

}  // namespace ringmpi
