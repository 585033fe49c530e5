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
  const int lane = lane_index();
#pragma unroll(D > 128 ? 1 : 4)
  for (int k = 0; k < D / 16; ++k) {
    u32 left[R / 2][4];
#pragma unroll
    for (int m = 0; m < R / 2; ++m)
      load_matrices(left[m], a.chunk(first_row + 16 * m + (lane & 15), 2 * k + (lane >> 4)));
#pragma unroll
    for (int j = 0; j < J; j += 2) {
      u32 right[4];
      load_matrices(right, b.chunk(8 * j + (lane & 7) + (lane >> 4) * 8, 2 * k + (lane >> 3 & 1)));
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

template <class T, int TERMS, int R, int J, int C, int D>
DEVICE void add_outer(float (&sums)[R][C][2], float (&weights)[R][J][2], Tile<T, D> b) {
  const int lane = lane_index();
#pragma unroll
  for (int j = 0; j < J; j += 2) {
    u32 left[TERMS][R / 2][4];
#pragma unroll
    for (int term = 0; term < TERMS; ++term)
#pragma unroll
      for (int part = 0; part < 2 * R; ++part) {
        float (&pair)[2] = weights[part / 4 * 2 + part % 2][j + part / 2 % 2];
        left[term][part / 4][part % 4] = take_term<T>(pair[0], pair[1]);
      }
#pragma unroll
    for (int c = 0; c < C; c += 2) {
      u32 right[4];
      load_matrices_transposed(right, b.chunk(8 * j + (lane & 15), c + (lane >> 4)));
#pragma unroll
      for (int term = 0; term < TERMS; ++term)
#pragma unroll
        for (int m = 0; m < R / 2; ++m) {
          multiply_16<T>(sums[2 * m][c], sums[2 * m + 1][c], left[term][m], right[0], right[1]);
          multiply_16<T>(sums[2 * m][c + 1], sums[2 * m + 1][c + 1], left[term][m], right[2], right[3]);
        }
    }
  }
}

template <int R, int J, int D>
DEVICE void add_inner(float (&sums)[R][J][2], Tile<float, D> a, int first_row, Tile<float, D> b) {
  const int g = lane_index() >> 2, t = lane_index() & 3;
#pragma unroll(D > 128 ? 1 : 4)
  for (int k = 0; k < D / 4; ++k) {
    float4 left[R];
#pragma unroll
    for (int i = 0; i < R; ++i) left[i] = *reinterpret_cast<const float4*>(a.chunk(first_row + 8 * i + g, k));
#pragma unroll
    for (int j = 0; j < J; ++j)
#pragma unroll
      for (int e = 0; e < 2; ++e) {
        const float4 right = *reinterpret_cast<const float4*>(b.chunk(8 * j + 2 * t + e, k));
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

template <class T, int TERMS, int R, int J, int C, int D>
DEVICE void add_outer(float (&sums)[R][C][2], float (&weights)[R][J][2], Tile<float, D> b) {
  const int lane = lane_index(), t = lane & 3;
#pragma unroll
  for (int j = 0; j < J; ++j)
#pragma unroll
    for (int n = 0; n < 8; ++n) {
      float weight[R];
#pragma unroll
      for (int i = 0; i < R; ++i) weight[i] = from_lane(weights[i][j][n & 1], (lane & ~3) + n / 2);
#pragma unroll
      for (int c = 0; c < C; ++c) {
        const float2 right = *reinterpret_cast<const float2*>(b.at(8 * j + n, 8 * c + 2 * t));
#pragma unroll
        for (int i = 0; i < R; ++i) {
          sums[i][c][0] = multiply_add(weight[i], right.x, sums[i][c][0]);
          sums[i][c][1] = multiply_add(weight[i], right.y, sums[i][c][1]);
        }
      }
    }
}

template <int R, int J, int D>
DEVICE void add_inner(double (&sums)[R][J][2], Tile<double, D> a, int first_row, Tile<double, D> b) {
  const int g = lane_index() >> 2, t = lane_index() & 3;
#pragma unroll(D > 128 ? 1 : 4)
  for (int k = 0; k < D; k += 4) {
    double left[R];
#pragma unroll
    for (int i = 0; i < R; ++i) left[i] = *a.at(first_row + 8 * i + g, k + t);
#pragma unroll
    for (int j = 0; j < J; ++j) {
      const double right = *b.at(8 * j + g, k + t);
#pragma unroll
      for (int i = 0; i < R; ++i) multiply_64(sums[i][j], left[i], right);
    }
  }
}

// The k of this product may run over keys in any order: 8 j + 2 t + e for column t of A, which is what a thread holds.
template <class T, int TERMS, int R, int J, int C, int D>
DEVICE void add_outer(double (&sums)[R][C][2], double (&weights)[R][J][2], Tile<double, D> b) {
  const int g = lane_index() >> 2, t = lane_index() & 3;
#pragma unroll
  for (int j = 0; j < J; ++j)
#pragma unroll
    for (int e = 0; e < 2; ++e)
#pragma unroll
      for (int c = 0; c < C; ++c) {
        const double right = *b.at(8 * j + 2 * t + e, 8 * c + g);
#pragma unroll
        for (int i = 0; i < R; ++i) multiply_64(sums[i][c], weights[i][j][e], right);
      }
}

}  // namespace ringmpi
