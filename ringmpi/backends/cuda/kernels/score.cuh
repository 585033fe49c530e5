// From q . k to scores (core/scoring.py), on the sums of one warp (products.cuh):
//
//   s = cap(scale q . k) - slope |i - j|      -inf where the mask excludes
//
// Weights are powers: of 2 in float (a product, and one instruction of the special function unit), of e in double. Where
// scores need no more than a scale they stay as the product gave them, and `Units` says what they are.
#pragma once

#include "dropout.cuh"
#include "products.cuh"
#include "walk.cuh"

namespace ringmpi {

// Where a thread stands: its rows are `row(i)` of the block, its columns `column(j, e)` of the tile.
template <int R> struct Place {
  const int g, t, warp_row;

  DEVICE Place() : g(lane_index() >> 2), t(lane_index() & 3), warp_row(thread_index() / 32 * 8 * R) {}
  DEVICE int row(int i) const { return warp_row + 8 * i + g; }
  DEVICE int column(int j, int e) const { return 8 * j + 2 * t + e; }
};

template <class A, int R, int N> struct Scores {
  A s[R][N / 8][2];

  DEVICE void clear() {
    each([](A& x, int, int, int) { x = A(0); });
  }
  // use(score, i, j, e) for all that the thread holds.
  template <class Use> DEVICE void each(Use use) {
#pragma unroll
    for (int i = 0; i < R; ++i)
#pragma unroll
      for (int j = 0; j < N / 8; ++j)
#pragma unroll
        for (int e = 0; e < 2; ++e) use(s[i][j][e], i, j, e);
  }
};

constexpr double LOG2_E = 1.4426950408889634;
DEVICE float power(float x) { return exponential2(x); }
DEVICE double power(double x) { return exponential(x); }
// e^x = power(in_powers(x)).
DEVICE float in_powers(float x) { return x * float(LOG2_E); }
DEVICE double in_powers(double x) { return x; }

// The score s of a pair, as it is held: s * natural is the score of the formula.
template <class A> struct Units {
  A natural;
};
template <class A> DEVICE Units<A> natural_units() { return {A(1)}; }
template <class A> DEVICE Units<A> units_of(const Scoring& scoring) {
  return {A(scoring.scale)};
}
// Whether scores are held as the product gives them.
template <bool EXTRAS> DEVICE bool held_raw(const Scoring& scoring) {
  return scoring.scale > 0 && !(EXTRAS && (scoring.softcap != 0 || scoring.slopes));
}

// Scale, and cap where there may be one.
template <bool EXTRAS, class A, int R, int N>
DEVICE Units<A> scale_scores(Scores<A, R, N>& scores, const Scoring& scoring) {
  if (held_raw<EXTRAS>(scoring)) return units_of<A>(scoring);
  const A cap = EXTRAS ? A(scoring.softcap) : A(0);
  const A factor = A(cap != 0 ? scoring.scale / scoring.softcap : scoring.scale);
  scores.each([&](A& s, int, int, int) { s *= factor; });
  if (cap != 0) scores.each([&](A& s, int, int, int) { s = cap * hyperbolic_tangent(s); });
  return natural_units<A>();
}

// ALiBi. Distances are exact: 64-bit integers, rounded once.
template <class A, int R, int N>
DEVICE void add_slope(Scores<A, R, N>& scores, A slope, const Item& item, Corner corner) {
  const Place<R> place;
#pragma unroll
  for (int i = 0; i < R; ++i) {
    const i64 ahead = item.row_position(corner.row + place.row(i)) - item.key_position(corner.key);
#pragma unroll
    for (int j = 0; j < N / 8; ++j)
#pragma unroll
      for (int e = 0; e < 2; ++e) {
        const i64 far = ahead - item.key_stride * place.column(j, e);
        scores.s[i][j][e] -= slope * A(far < 0 ? -far : far);
      }
  }
}

// Excludes what the mask excludes; `seen` [M]: columns of the tile that each row of the block sees. Returns the pairs
// that are left to this thread.
template <class A, int R, int N> DEVICE int exclude(Scores<A, R, N>& scores, const int2* seen) {
  const Place<R> place;
  int pairs = 0;
#pragma unroll
  for (int i = 0; i < R; ++i) {
    const int2 span = seen[place.row(i)];
#pragma unroll
    for (int j = 0; j < N / 8; ++j)
#pragma unroll
      for (int e = 0; e < 2; ++e) {
        const bool sees = span.x <= place.column(j, e) && place.column(j, e) < span.y;
        scores.s[i][j][e] = sees ? scores.s[i][j][e] : -infinity<A>();
        pairs += sees;
      }
  }
  return pairs;
}

// Weights times 0 or 1 / (1 - dropout).
template <class A, int R, int N>
DEVICE void drop(Scores<A, R, N>& weights, const Scoring& scoring, int head, int batch, const Item& item, Corner corner) {
  const Place<R> place;
  const A kept = A(scoring.dropout_factor);
#pragma unroll
  for (int i = 0; i < R; ++i) {
    const i64 row = item.row_position(corner.row + place.row(i)), key = item.key_position(corner.key);
    const u32 bits = kept_pairs<N / 4>(
        scoring, u32(head), u32(batch), [&](int) { return row; },
        [&](int n) { return key + item.key_stride * place.column(n >> 1, n & 1); });
#pragma unroll
    for (int n = 0; n < N / 4; ++n) weights.s[i][n >> 1][n & 1] *= bits >> n & 1 ? kept : A(0);
  }
}

}  // namespace ringmpi
