// One tile of keys into one strip of rows: the two products, and the softmax between them.
#pragma once

#include "strip.h"

namespace ringmpi {

// Keys and values of one head, of the keys from local key `start` on: the first `lying` ones where they lie, the rest
// packed.
template <class T> struct KeyBlock {
  T* key;         // [keys / ROWS][head_dim][ROWS]
  T* value;       // [tile][columns / ROWS][TILE][ROWS]
  char* special;  // [keys]: 1 where the value held NaN or inf, which are 0 here. Null: none is looked for
  int64_t batch, head, start, lying;
};

// What one strip takes of one tile: which lanes, and for each of their vectors which keys, in whole panels, counted
// from the tile. Starts and stops rise with the vector. `uncut`: all lanes see all of these keys, the same for all.
struct Cut {
  int64_t tile;  // its first key, counted from the block
  int first_lane, last_lane;
  bool uncut;
  int64_t start[VECS], stop[VECS];

  int first_vector(int lanes) const { return first_lane / lanes; }
  int vectors(int lanes) const { return (last_lane + lanes - 1) / lanes - first_vector(lanes); }
};

template <int N> using Count = std::integral_constant<int, N>;

constexpr int ROWS_AHEAD = 3;  // asked for with each panel

template <class T> class Fold {
  static constexpr int S = STRIP<T>, L = LANES<T>;

 public:
  explicit Fold(const Problem& problem)
      : p_(problem), scorer_{problem}, columns_(padded(problem.value_dim, ROWS)) {}

  // Keys [from, until) of one tile, counted from the block, into one strip. Returns the pairs.
  int64_t operator()(Strip<T>& strip, Cut cut, int64_t from, int64_t until, const KeyBlock<T>& block) {
    const int64_t pairs = add_tile(strip, cut, from, until, block);
    if (block.special) add_special(strip, cut, from, until, block);
    return pairs;
  }

 private:
  int64_t add_tile(Strip<T>& strip, Cut& cut, int64_t from, int64_t until, const KeyBlock<T>& block) {
    const int at = cut.first_vector(L), count = cut.vectors(L);
    if (cut.uncut) {
      std::fill(cut.start, cut.start + count, from - cut.tile);
      std::fill(cut.stop, cut.stop + count, until - cut.tile);
      fold_vectors(strip, cut, block, at, count);
      return (until - from) * (cut.last_lane - cut.first_lane);
    }
    int64_t pairs = 0;
    for (int v = 0; v < count; ++v) pairs += find_keys(strip, at + v, from, until, cut.tile, cut.start[v], cut.stop[v]);
    bool together = cut.start[count - 1] <= cut.stop[0];
    for (int v = 0; v < count; ++v) together = together && cut.start[v] < cut.stop[v];
    if (together) return fold_vectors(strip, cut, block, at, count), pairs;
    for (int v = 0; v < count; ++v) {
      const Cut one{cut.tile, cut.first_lane, cut.last_lane, false, {cut.start[v]}, {cut.stop[v]}};
      if (cut.start[v] < cut.stop[v]) fold_vectors(strip, one, block, at + v, 1);
    }
    return pairs;
  }

  // Which panels of keys [from, until) a vector needs. Returns its pairs.
  static int64_t find_keys(const Strip<T>& strip, int vector, int64_t from, int64_t until, int64_t tile, int64_t& first,
                           int64_t& last) {
    const Integer<T> least = Integer<T>(from), most = Integer<T>(until);
    Integer<T> low = most, high = least, pairs = 0;
    for (int lane = vector * L; lane < (vector + 1) * L; ++lane) {
      const Integer<T> start = std::max(strip.lanes->start[lane], least);
      const Integer<T> stop = std::min(strip.lanes->stop[lane], most);
      pairs += std::max<Integer<T>>(stop - start, 0);
      low = std::min(low, start < stop ? start : most), high = std::max(high, start < stop ? stop : least);
    }
    first = (low - tile) / ROWS * ROWS, last = low < high ? padded(high - tile, ROWS) : first;
    return pairs;
  }

  void fold_vectors(Strip<T>& strip, const Cut& cut, const KeyBlock<T>& block, int vector, int count) {
    switch (count) {
      case 1: return fold_vectors<1>(strip, cut, block, vector * L);
      case 2: return fold_vectors<2>(strip, cut, block, vector * L);
      default: return fold_vectors<3>(strip, cut, block, vector * L);
    }
  }

  template <int N> void fold_vectors(Strip<T>& strip, const Cut& cut, const KeyBlock<T>& block, int at) {
    if (cut.tile < block.lying) {
      const auto rows = [&](const Array& array) {
        return reinterpret_cast<const T*>(array.row(block.batch, block.head, block.start + cut.tile));
      };
      const InRows<T> key(rows(p_.k), p_.head_dim, rows(p_.v), p_.value_dim);
      fold_panels<N>(strip, cut, key, InColumns<T>(rows(p_.v), p_.value_dim), at);
    } else {
      const Packed<T> key{block.key + cut.tile * p_.head_dim, p_.head_dim * ROWS};
      fold_panels<N>(strip, cut, key, Packed<T>{block.value + cut.tile * columns_, TILE * ROWS}, at);
    }
  }

  template <int N, class Key, class Value>
  RINGMPI_INLINE void fold_panels(Strip<T>& strip, const Cut& cut, Key key, Value value, int at) {
    T* const scores = strip.scores + at;
    Vec<T> top[N], rescale[N];
    for (int v = 0; v < N; ++v) top[v] = broadcast(-INF<T>);
    if (cut.uncut) {
      each_panels<N>(cut.start[0] / ROWS, cut.stop[0] / ROWS, [&](auto panels, int64_t k) {
        strip.ahead.step(ROWS_AHEAD);
        score<panels(), N>(strip.query + at, moved(key, k), scores + k * ROWS * S, top);
      });
    } else {
      score_cut<N>(strip, at, key, cut);
    }
    for (int v = 0; v < N; ++v) {
      T* const column = scores + v * L + cut.start[v] * S;
      const int64_t first = cut.tile + cut.start[v], stop = cut.tile + cut.stop[v];
      if (!cut.uncut || !scorer_.plain()) top[v] = scorer_.finish(column, *strip.lanes, at + v * L, first, stop);
      rescale[v] = strip.record ? weigh_recorded(strip, at + v * L, column, cut.tile, first, stop, top[v])
                                : weigh(strip, at + v * L, column, 0, stop - first, top[v], Unrecorded<T>{});
      if (scorer_.drops()) scorer_.drop(column, *strip.lanes, at + v * L, first, stop);
    }
    each_panels<N>(0, columns_ / ROWS, [&](auto panels, int64_t c) {
      strip.ahead.step(ROWS_AHEAD);
      weighted_sum<panels(), N>(moved(value, c), scores, cut, rescale, strip.sum + c * ROWS * S + at);
    });
  }

  // Panels that one product takes: with one vector, two of them keep the FMA units busy.
  template <int N> static constexpr int PANELS = N == 1 ? 2 : 1;

  // use(P, first) for the panels first ... last - 1, P at a time.
  template <int N, class Use> static RINGMPI_INLINE void each_panels(int64_t first, int64_t last, Use use) {
    for (; first + PANELS<N> <= last; first += PANELS<N>) use(std::integral_constant<int, PANELS<N>>{}, first);
    if (PANELS<N> > 1 && first < last) use(std::integral_constant<int, 1>{}, first);
  }

  // s = K q of P panels of keys, and the maxima of lanes.
  template <int P, int N, class Key>
  RINGMPI_INLINE void score(const T* query, Key key, T* scores, Vec<T> (&top)[N]) {
    Vec<T> acc[P * ROWS][N];
    clear<T>(acc);
    multiply_panels<T, P, 0, N>(key, query, S, p_.head_dim, acc);
    for (int i = 0; i < P * ROWS; ++i)
      for (int v = 0; v < N; ++v) {
        store(scores + i * S + v * L, acc[i][v]);
        top[v] = larger(acc[i][v], top[v]);
      }
  }

  // The same, each panel for those of N vectors that need it.
  template <int N, class Key> void score_cut(Strip<T>& strip, int at, Key key, const Cut& cut) {
    int from = 0, to = 0;
    for (int64_t k = cut.start[0]; k < cut.stop[N - 1]; k += ROWS) {
      while (cut.stop[from] <= k) ++from;
      while (to < N && cut.start[to] <= k) ++to;
      strip.ahead.step(ROWS_AHEAD);
      const Key panel = moved(key, k / ROWS);
      const T* const query = strip.query + at + from * L;
      T* const scores = strip.scores + at + k * S + from * L;
      Vec<T> top[VECS];  // unused: maxima are taken after the mask
      switch (to - from) {
        case 1: score<1, 1>(query, panel, scores, reinterpret_cast<Vec<T>(&)[1]>(top)); break;
        case 2: score<1, 2>(query, panel, scores, reinterpret_cast<Vec<T>(&)[2]>(top)); break;
        default: score<1, 3>(query, panel, scores, top);
      }
    }
  }

  // o' = a o + V^T p of P panels of columns: keys that the first vectors see, that all see, that the last ones see.
  template <int P, int N, class Value>
  RINGMPI_INLINE void weighted_sum(Value value, const T* weights, const Cut& cut, const Vec<T> (&rescale)[N], T* sum) {
    Vec<T> acc[P * ROWS][N];
    clear<T>(acc);
    const auto part = [&](auto first, auto count, int64_t start, int64_t stop) {
      multiply_panels<T, P, first(), count()>(moved(value, 0, start), weights + start * S, S, stop - start, acc);
    };
    if constexpr (N > 1) part(Count<0>{}, Count<1>{}, cut.start[0], cut.start[1]);
    if constexpr (N > 2) part(Count<0>{}, Count<2>{}, cut.start[1], cut.start[2]);
    part(Count<0>{}, Count<N>{}, cut.start[N - 1], cut.stop[0]);
    if constexpr (N > 2) part(Count<1>{}, Count<2>{}, cut.stop[0], cut.stop[1]);
    if constexpr (N > 1) part(Count<N - 1>{}, Count<1>{}, cut.stop[N - 2], cut.stop[N - 1]);
    for (int i = 0; i < P * ROWS; ++i)
      for (int v = 0; v < N; ++v) {
        T* const to = sum + i * S + v * L;
        store(to, rescale[v] * load(to) + acc[i][v]);
      }
  }

  // The same with a record of the rows. Keys first ... stop - 1 count from the block.
  __attribute__((noinline)) Vec<T> weigh_recorded(Strip<T>& strip, int lane, T* scores, int64_t tile, int64_t first,
                                                  int64_t stop, Vec<T> top) {
    const Vec<T> before = load(strip.row_max + lane), total = load(strip.total + lane);
    const Vec<T> shift = shift_of(larger(top, before));
    Recorder<T> recorder(*strip.record, *strip.lanes, lane, tile);
    const int64_t from = first - tile, to = stop - tile;
    recorder.note_top(scores, from, to, top, before);
    const Vec<T> rescale = weigh<Recorder<T>&>(strip, lane, scores, from, to - from, top, recorder);
    recorder.finish(scores, from, to, rescale, before, shift, total);
    return rescale;
  }

  static RINGMPI_INLINE Vec<T> shift_of(Vec<T> row_max) {  // -inf - -inf would be NaN
    return row_max == broadcast(-INF<T>) ? Vec<T>{} : row_max;
  }

  // Scores of one vector to weights in place; row_max and total carried on. Returns a of the formula above. `watch`
  // sees keys from key `first` on.
  template <class Watch>
  RINGMPI_INLINE Vec<T> weigh(Strip<T>& strip, int lane, T* scores, int64_t first, int64_t count, Vec<T> top,
                              Watch watch) {
    const Vec<T> floor = exp_floor<T>(), none = broadcast(-INF<T>);
    const Vec<T> before = load(strip.row_max + lane), after = larger(top, before);
    const Vec<T> shift = shift_of(after);
    const Vec<T> rescale = before == none ? Vec<T>{} : exp<T>(before - shift, floor);
    Vec<T> sum{};
    for (T* s = scores; s < scores + count * S; s += ROWS * S, first += ROWS) {
      Vec<T> p[ROWS];
      for (int i = 0; i < ROWS; ++i) {
        const Vec<T> below = load(s + i * S) - shift;
        store(s + i * S, p[i] = exp<T>(below, floor));
        watch.pair(first + i, below, p[i]);
      }
      watch.panel();
      for (int width = ROWS / 2; width; width /= 2)
        for (int i = 0; i < width; ++i) p[i] += p[i + width];
      sum += p[0];
    }
    store(strip.row_max + lane, sum == sum ? after : sum);  // NaN among the scores is in the sum, not in the maxima
    store(strip.total + lane, rescale * load(strip.total + lane) + sum);
    return rescale;
  }

  // NaN and inf of values, left out of the product, to the rows that see them.
  void add_special(Strip<T>& strip, const Cut& cut, int64_t from, int64_t until, const KeyBlock<T>& block) {
    for (int64_t k = from; k < until; ++k) {
      if (!block.special[k]) continue;
      widen(p_.v.row(block.batch, block.head, block.start + k), p_.v.stride[3], p_.value_dim, p_.dtype, strip.wide);
      for (int lane = cut.first_lane; lane < cut.last_lane; ++lane) {
        if (k < strip.lanes->start[lane] || k >= strip.lanes->stop[lane]) continue;
        const T weight = strip.scores[(k - cut.tile) * S + lane];
        for (int64_t c = 0; c < p_.value_dim; ++c)
          if (!std::isfinite(strip.wide[c])) strip.sum[c * S + lane] += weight * strip.wide[c];
      }
    }
  }

  const Problem& p_;
  const Scorer<T> scorer_;
  const int64_t columns_;  // value_dim in whole panels
};

}  // namespace ringmpi
