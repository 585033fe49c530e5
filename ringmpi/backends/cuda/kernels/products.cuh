// The two products of attention for one warp. A thread holds R rows, 8 i + g of the rows of its warp, and in these the
// columns 8 j + 2 t and 8 j + 2 t + 1 (g, t: primitives.cuh): sums[i][j][0..1].
//
//   add_inner    sums[i][j][e] += a[row] . b[8 j + 2 t + e]                          b: 8 J rows
//   add_outer    sums[i][c][e] += sum_key weights[row][key] b[key][8 c + 2 t + e]    b: 8 J rows of 8 C columns
//
// The sums of a row know nothing of other rows. TERMS (16 bit only): weights are float and the tensor cores take 16 bit,
// so a weight goes in as a sum of so many 16-bit numbers: 1 rounds it, 2 of float16 or 3 of bfloat16 keep it.
#pragma once

#include "tile.cuh"

namespace ringmpi {

DEVICE int lane_index() { return thread_index() & 31; }

template <class T, int R, int J, int D>
DEVICE void add_inner(float (&sums)[R][J][2], Tile<T, D> a, int first_row, Tile<T, D> b) {
  const int lane = opaque(lane_index());
  const int own_a = a.offset(first_row + (lane & 15), lane >> 4);
  const int own_b = b.offset((lane & 7) + (lane >> 4) * 8, lane >> 3 & 1);
#pragma unroll 4
  for (int k = 0; k < D / 16; ++k) {
    u32 left[R / 2][4];
#pragma unroll
    for (int m = 0; m < R / 2; ++m)
      load_matrices(left[m], a.template after<T>(own_a, 2 * k, 16 * m));
#pragma unroll
    for (int j = 0; j < J; j += 2) {
      u32 right[4];
      load_matrices(right, b.template after<T>(own_b, 2 * k, 8 * j));
#pragma unroll
      for (int m = 0; m < R / 2; ++m) {
        multiply_16<T>(sums[2 * m][j], sums[2 * m + 1][j], left[m], right[0], right[1]);
        multiply_16<T>(sums[2 * m][j + 1], sums[2 * m + 1][j + 1], left[m], right[2], right[3]);
      }
    }
  }
}

// Takes the nearest 16-bit numbers off `low` and `high`, and leaves what remains.
template <class T> DEVICE u32 take_term(float& low, float& high) {
  const u32 term = pack<T>(low, high);
  low -= widen(T{u16(term & 0xffff)});
  high -= widen(T{u16(term >> 16)});
  return term;
}

// APART: tensor cores cut sums off where adding rounds, so a sum that stays in them falls behind by more with each tile.
// That of one tile is made apart, its least terms first, and then added in float. Rounded weights are off by more in any
// case, and with 256 columns a thread has no registers for it.
template <class T, int TERMS, int R, int J, int C, int D>
DEVICE void add_outer(float (&sums)[R][C][2], float (&weights)[R][J][2], Tile<T, D> b) {
  constexpr bool APART = TERMS > 1 && D <= 192;
  const int lane = opaque(lane_index()), own = b.offset(lane & 15, lane >> 4);
  u32 left[J / 2][TERMS][R / 2][4];
#pragma unroll
  for (int j = 0; j < J; j += 2)
#pragma unroll
    for (int term = 0; term < TERMS; ++term)
#pragma unroll
      for (int part = 0; part < 2 * R; ++part) {
        float (&pair)[2] = weights[part / 4 * 2 + part % 2][j + part / 2 % 2];
        left[j / 2][term][part / 4][part % 4] = take_term<T>(pair[0], pair[1]);
      }
#pragma unroll
  for (int c = 0; c < C; c += 2) {
    if (APART) warp_barrier();  // one pair of columns after the other: sums of all would not fit into registers
    float of_tile[R][2][2];
#pragma unroll
    for (int n = 0; n < 4 * R; ++n)
      of_tile[n / 4][n / 2 % 2][n % 2] = APART ? 0.0f : sums[n / 4][c + n / 2 % 2][n % 2];
#pragma unroll
    for (int j = 0; j < J; j += 2) {
      u32 right[4];
      load_matrices_transposed(right, b.template after<T>(own, c, 8 * j));
#pragma unroll
      for (int term = TERMS - 1; term >= 0; --term)
#pragma unroll
        for (int m = 0; m < R / 2; ++m)
#pragma unroll
          for (int n = 0; n < 2; ++n)
            multiply_16<T>(of_tile[2 * m][n], of_tile[2 * m + 1][n], left[j / 2][term][m], right[2 * n], right[2 * n + 1]);
    }
#pragma unroll
    for (int n = 0; n < 4 * R; ++n) {
      float& sum = sums[n / 4][c + n / 2 % 2][n % 2];
      sum = APART ? sum + of_tile[n / 4][n / 2 % 2][n % 2] : of_tile[n / 4][n / 2 % 2][n % 2];
    }
  }
}

template <int R, int J, int D>
DEVICE void add_inner(float (&sums)[R][J][2], Tile<float, D> a, int first_row, Tile<float, D> b) {
  const int lane = opaque(lane_index()), g = lane >> 2, t = lane & 3;
  const int own_a = a.offset(first_row + g, 0), own_b[2] = {b.offset(2 * t, 0), b.offset(2 * t + 1, 0)};
#pragma unroll 4
  for (int k = 0; k < D / 4; ++k) {
    float4 left[R];
#pragma unroll
    for (int i = 0; i < R; ++i) left[i] = *a.template after<const float4>(own_a, k, 8 * i);
#pragma unroll
    for (int j = 0; j < J; ++j)
#pragma unroll
      for (int e = 0; e < 2; ++e) {
        const float4 right = *b.template after<const float4>(own_b[e], k, 8 * j);
#pragma unroll
        for (int i = 0; i < R; ++i) {
          float& sum = sums[i][j][e];
          sum = multiply_add(left[i].x, right.x, sum);
          sum = multiply_add(left[i].y, right.y, sum);
          sum = multiply_add(left[i].z, right.z, sum);
          sum = multiply_add(left[i].w, right.w, sum);
        }
      }
  }
}

// Keys in the order 8 j + 2 n + e, n outermost: a loop that is not unrolled, or the code would be four times as long.
template <class T, int TERMS, int R, int J, int C, int D>
DEVICE void add_outer(float (&sums)[R][C][2], float (&weights)[R][J][2], Tile<float, D> b) {
  const int lane = opaque(lane_index()), t = lane & 3;
#pragma unroll 1
  for (int n = 0; n < 4; ++n) {
    const int own[2] = {b.offset(2 * n, t >> 1) + t % 2 * 8, b.offset(2 * n + 1, t >> 1) + t % 2 * 8};
#pragma unroll
    for (int part = 0; part < 2 * J; ++part) {
      const int j = part / 2, e = part % 2;
      float weight[R];
#pragma unroll
      for (int i = 0; i < R; ++i) weight[i] = from_lane(weights[i][j][e], (lane & ~3) + n);
#pragma unroll
      for (int c = 0; c < C; ++c) {
        const float2 right = *b.template after<const float2>(own[e], 2 * c, 8 * j);
#pragma unroll
        for (int i = 0; i < R; ++i) {
          sums[i][c][0] = multiply_add(weight[i], right.x, sums[i][c][0]);
          sums[i][c][1] = multiply_add(weight[i], right.y, sums[i][c][1]);
        }
      }
    }
  }
}

template <int R, int J, int D>
DEVICE void add_inner(double (&sums)[R][J][2], Tile<double, D> a, int first_row, Tile<double, D> b) {
  const int lane = opaque(lane_index()), g = lane >> 2, t = lane & 3;
  const int own_a = a.offset(first_row + g, t >> 1) + t % 2 * 8, own_b = b.offset(g, t >> 1) + t % 2 * 8;
#pragma unroll 4
  for (int k = 0; k < D; k += 4) {
    double left[R];
#pragma unroll
    for (int i = 0; i < R; ++i) left[i] = *a.template after<double>(own_a, k / 2, 8 * i);
#pragma unroll
    for (int j = 0; j < J; ++j) {
      const double right = *b.template after<double>(own_b, k / 2, 8 * j);
#pragma unroll
      for (int i = 0; i < R; ++i) multiply_64(sums[i][j], left[i], right);
    }
  }
}

// The k of this product may run over keys in any order: 8 j + 2 t + e for column t of A, which is what a thread holds.
template <class T, int TERMS, int R, int J, int C, int D>
DEVICE void add_outer(double (&sums)[R][C][2], double (&weights)[R][J][2], Tile<double, D> b) {
  const int lane = opaque(lane_index()), g = lane >> 2, t = lane & 3;
  const int own[2] = {b.offset(2 * t, g >> 1) + g % 2 * 8, b.offset(2 * t + 1, g >> 1) + g % 2 * 8};
#pragma unroll
  for (int j = 0; j < J; ++j)
#pragma unroll
    for (int e = 0; e < 2; ++e)
#pragma unroll
      for (int c = 0; c < C; ++c) {
        const double right = *b.template after<double>(own[e], 4 * c, 8 * j);
#pragma unroll
        for (int i = 0; i < R; ++i) multiply_64(sums[i][c], weights[i][j][e], right);
      }
}

}  // namespace ringmpi
