// What is done to the scores and to dP of HIGH rows and one panel of keys, between the products:
//
//   p = e^(s - log_sum_exp)    dS = p (f dP - delta)    d slope -= dS |i - j|    dS *= 1 - tanh^2    p *= f
//
// f: dropout. s is in natural units as log_sum_exp is: s - log_sum_exp is exactly 0 where one key has all the weight,
// however large its score; units of log2 come in after the difference.
#pragma once

#include "philox.h"
#include "simd.h"
#include "backward_sight.h"

namespace ringmpi {

// What all pairs of one query head and one item share.
template <class T> struct Pairing {
  const Problem& problem;
  const Item& item;
  int64_t batch, head, first_row, first_key;  // local indices of the tile's corner

  bool plain() const { return problem.softcap == 0 && !problem.slopes && !problem.dropout_least; }
  T slope() const { return problem.slopes ? T(problem.slopes[head]) : T(0); }
};

// A weight below 2^-100 (float64: 2^-996) of its row is taken as 0: products with it would be subnormal numbers, on
// which processors lose a hundred times their speed.
template <class T> constexpr T LEAST_LOG2 = T(27 - Exp2<T>::BIAS);

// What stands beside the scores of a block.
template <class T> struct alignas(64) Beside {
  T bend[HIGH * PANEL<T>];      // derivative of the cap
  T distance[HIGH * PANEL<T>];  // |i - j|
  T kept[HIGH * PANEL<T>];      // dropout: f
};

// A block of HIGH rows x PANEL keys: its first row and key, counted from the tile's corner.
template <class T> struct Block {
  const Pairing<T>& pair;
  const Sight& sight;
  Beside<T>& beside;
  int64_t row, key;
  bool whole;  // every row sees every key

  int64_t pairs() const {
    const auto inside = [&](int64_t k) { return std::clamp<int64_t>(k - key, 0, PANEL<T>); };
    int64_t count = 0;
    for (int64_t i = row; i < row + HIGH; ++i) count += inside(sight.stop[i]) - inside(sight.start[i]);
    return count;
  }

  // Which lanes of vector v row i sees: all bits or none.
  RINGMPI_INLINE Ints<T> seen(int64_t i, int64_t v) const {
    Ints<T> lane;
    for (int n = 0; n < LANES<T>; ++n) lane[n] = n;
    const Integer<T> first = Integer<T>(key + v * LANES<T>);
    return (lane >= Integer<T>(sight.start[row + i]) - first) & (lane < Integer<T>(sight.stop[row + i]) - first);
  }

  // Fills what `weigh` and `bring_back` need of each pair beside its score.
  void prepare() {
    if (pair.problem.slopes) measure();
    if (pair.problem.dropout_least) drop();
  }

  // Scores to weights, vectors [from, end) of the block.
  template <bool PLAIN>
  RINGMPI_INLINE void weigh(T* scores, const T* log_sum_exp, int from, int end) {
    const T cap = T(pair.problem.softcap), slope = pair.slope();
    for (int64_t i = 0; i < HIGH; ++i) {
      for (int v = from; v < end; ++v) {
        const int64_t n = i * PANEL<T> + v * LANES<T>;
        Vec<T> s = load(scores + n);
        if (!PLAIN && cap != 0) {
          const Vec<T> t = tanh<T>(s);
          Vec<T> bend = T(1) - t * t;
          if (!whole) bend = seen(i, v) ? bend : Vec<T>{};  // NaN of others
          store(beside.bend + n, bend);
          s = cap * t;
        }
        if (!PLAIN && slope != 0) s -= slope * load(beside.distance + n);
        const Vec<T> x = (s - log_sum_exp[i]) * T(LOG2_E);
        Vec<T> p = x < LEAST_LOG2<T> ? Vec<T>{} : exp2<T>(x);  // NaN stays
        if (!whole) p = seen(i, v) ? p : Vec<T>{};
        store(scores + n, p);
      }
    }
  }

  // p to f p, where no dS is wanted.
  void keep(T* weights, int from, int end) {
    for (int64_t i = 0; i < HIGH; ++i)
      for (int v = from; v < end; ++v) {
        const int64_t n = i * PANEL<T> + v * LANES<T>;
        store(weights + n, load(weights + n) * load(beside.kept + n));
      }
  }

  // dP to dS, and p to f p. Returns the sum of dS |i - j|.
  template <bool PLAIN>
  RINGMPI_INLINE double bring_back(T* weights, T* gradient, const T* delta, int from, int end) {
    const bool slopes = !PLAIN && pair.problem.slopes, drops = !PLAIN && pair.problem.dropout_least;
    double total = 0;
    for (int64_t i = 0; i < HIGH; ++i) {
      Vec<T> moment{};
      for (int v = from; v < end; ++v) {
        const int64_t n = i * PANEL<T> + v * LANES<T>;
        const Vec<T> p = load(weights + n);
        Vec<T> x = load(gradient + n);
        if (drops) x *= load(beside.kept + n);
        x = p * (x - delta[i]);
        if (!whole) x = seen(i, v) ? x : Vec<T>{};
        if (slopes) moment += x * load(beside.distance + n);
        if (!PLAIN && pair.problem.softcap != 0) x *= load(beside.bend + n);
        store(gradient + n, x);
        if (drops) store(weights + n, p * load(beside.kept + n));
      }
      for (int n = 0; slopes && n < LANES<T>; ++n) total += double(moment[n]);
    }
    return total;
  }

 private:
  int64_t row_position(int64_t i) const { return pair.item.row_position(pair.first_row + row + i); }
  int64_t key_position() const { return pair.item.key_position(pair.first_key + key); }

  // Distances, rounded once from exact integers: where all of them are small, scalars are as exact.
  void measure() {
    constexpr int64_t EXACT = int64_t(1) << std::numeric_limits<T>::digits;
    const int64_t stride = pair.item.key_stride;
    for (int64_t i = 0; i < HIGH; ++i) {
      const int64_t first = key_position() - row_position(i);
      T* to = beside.distance + i * PANEL<T>;
      if (std::abs(first) + stride * PANEL<T> < EXACT)
        for (int n = 0; n < PANEL<T>; ++n) to[n] = std::abs(T(first) + T(stride) * T(n));
      else
        for (int n = 0; n < PANEL<T>; ++n) to[n] = T(std::abs(first + stride * n));
    }
  }

  // Dropout factors. Four keys side by side share a counter (core/dropout.py).
  void drop() {
    const int64_t first = key_position(), stride = pair.item.key_stride;
    if (stride == 1)
      draw<PANEL<T> / 4 + 1>([&](int64_t quad) { return (first >> 2) + quad; },
                             [&](int64_t n) { return (first & 3) + n; });
    else
      draw<PANEL<T>>([&](int64_t n) { return (first + stride * n) >> 2; },
                     [&](int64_t n) { return 4 * n + ((first + stride * n) & 3); });
  }

  // Words 4 c ... 4 c + 3 of each row are those of its counter c, at quad(c); word(n): that of key n.
  template <int COUNTERS, class Quad, class Word> void draw(Quad quad, Word word) {
    alignas(64) uint32_t words[4][HIGH * COUNTERS], flat[4 * COUNTERS];
    for (int64_t i = 0; i < HIGH; ++i)
      for (int64_t c = 0; c < COUNTERS; ++c) {
        words[0][i * COUNTERS + c] = uint32_t(row_position(i)), words[1][i * COUNTERS + c] = uint32_t(quad(c));
        words[2][i * COUNTERS + c] = uint32_t(pair.head), words[3][i * COUNTERS + c] = uint32_t(pair.batch);
      }
    philox<HIGH * COUNTERS>(words, pair.problem.seed);
    const uint32_t least = uint32_t(pair.problem.dropout_least);
    const T factor = T(pair.problem.dropout_factor);
    for (int64_t i = 0; i < HIGH; ++i) {
      for (int64_t c = 0; c < COUNTERS; ++c)
        for (int w = 0; w < 4; ++w) flat[4 * c + w] = words[w][i * COUNTERS + c];
      T* to = beside.kept + i * PANEL<T>;
      for (int64_t n = 0; n < PANEL<T>; ++n)
        to[n] = flat[word(n)] >= least ? factor : T(0);
    }
  }
};

}  // namespace ringmpi
