// The online softmax (Milakov & Gimelshein 2018, section 3.1; Dao 2023, algorithm 1) of the rows of one warp:
//
//   m' = max(m, max s)     p = e^(s - m')     a = e^(m - m')     l' = a l + sum p     o' = a o + p V
//
// Four lanes share a row: sums go over the columns of each, then over the four in a fixed order.
#pragma once

#include "score.cuh"

namespace ringmpi {

// The carried Partial of the rows of one thread.
template <class A, int R, int DV> struct Carried {
  A row_max[R], row_sum[R], weighted_sum[R][DV / 8][2];

  // Scores to weights, in place. row_max is in natural units from call to call, and all else follows from it alone: so
  // calls may be cut anywhere.
  template <int N> DEVICE void absorb(Scores<A, R, N>& scores, Units<A> units) {
#pragma unroll
    for (int i = 0; i < R; ++i) {
      const A before = row_max[i], after = larger_or_nan(before, largest(scores.s[i]) * units.natural);
      const A shift = after == -infinity<A>() ? A(0) : after;  // -inf - -inf would be NaN
      const A rescale = before == -infinity<A>() ? A(0) : power(in_powers(before - shift));
      const A sum = weigh(scores.s[i], units.natural, shift);
      row_sum[i] = multiply_add(rescale, row_sum[i], sum);
      row_max[i] = sum == sum ? after : sum;  // NaN among the scores is in the sum, not in the maximum
      if (rescale != A(1)) {                  // most tiles move no maximum
#pragma unroll
        for (int c = 0; c < DV / 8; ++c)
#pragma unroll
          for (int e = 0; e < 2; ++e) weighted_sum[i][c][e] *= rescale;
      }
    }
  }

 private:
  static DEVICE A larger_or_nan(A before, A top) { return before == before ? larger(before, top) : before; }

  template <int COUNT> static DEVICE A largest(const A (&s)[COUNT][2]) {
    A top = -infinity<A>();
#pragma unroll
    for (int j = 0; j < COUNT; ++j) top = larger(top, larger(s[j][0], s[j][1]));
    top = larger(top, exchange(top, 1));
    return larger(top, exchange(top, 2));
  }

  // Scaled and rounded as the maximum was, so that the largest score gets exactly 1: one fused multiply-add with log2 e in
  // the scale would be off by the rounding of the maximum, 1e-3 at scores of 1e4.
  template <int COUNT> static DEVICE A weigh(A (&s)[COUNT][2], A natural, A shift) {
    A sum = A(0);
#pragma unroll
    for (int j = 0; j < COUNT; ++j)
#pragma unroll
      for (int e = 0; e < 2; ++e) sum += s[j][e] = power(in_powers(s[j][e] * natural - shift));
    sum += exchange(sum, 1);
    return sum + exchange(sum, 2);
  }
};

}  // namespace ringmpi
