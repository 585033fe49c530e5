// NaN and inf behind a mask. A product takes every row of a tile with every weight, and 0 NaN is NaN. So where inputs
// are not finite, rows of the tile that hold NaN or inf are emptied of these before the product; afterwards they are
// added, element by element, to the rows that see them.
#pragma once

#include "score.cuh"

namespace ringmpi {

template <class A> DEVICE bool is_finite(A x) { return x - x == A(0); }

// Puts 0 in the place of NaN and inf; special[row] says where there were any. Whether there were, for all threads.
template <int N, class T, int D> DEVICE bool clean(Tile<T, D> tile, int* special) {
  int any = 0;
  for (int row = thread_index(); row < N; row += THREADS) {
    int found = 0;
#pragma unroll 1
    for (int column = 0; column < D; ++column) {
      T* const element = tile.at(row, column);
      if (is_finite(widen(*element))) continue;
      *element = T{};
      found = 1;
    }
    special[row] = found;
    any |= found;
  }
  return barrier_or(any);
}

// What the thread of a quad that holds column `key` has of row i; the index is not known at compile time, registers are.
template <class A, int R, int N> DEVICE A weight_of(const Scores<A, R, N>& weights, int i, int key) {
  A weight = A(0);
#pragma unroll
  for (int j = 0; j < N / 8; ++j)
#pragma unroll
    for (int e = 0; e < 2; ++e) {
      const A own = weights.s[i][j][e];  // read in any case: a choice between addresses would move all to memory
      weight = j == key / 8 && e == key % 2 ? own : weight;
    }
  return from_lane(weight, (lane_index() & ~3) + key % 8 / 2);
}

// sums += weight x for what `clean` took from the tile whose first row is at `slab`.
template <class T, class A, int R, int N, int C>
DEVICE void add_special(A (&sums)[R][C][2], const Scores<A, R, N>& weights, const int2* seen, const int* special,
                        const unsigned char* slab, i64 row_stride, int columns) {
  const Place<R> place;
#pragma unroll 1
  for (int key = 0; key < N; ++key) {
    if (!special[key]) continue;
    A weight[R];
    bool sees[R];
#pragma unroll
    for (int i = 0; i < R; ++i) {
      weight[i] = weight_of(weights, i, key);
      const int2 span = seen[place.row(i)];
      sees[i] = span.x <= key && key < span.y;
    }
    const T* const from = reinterpret_cast<const T*>(slab + key * row_stride);
#pragma unroll
    for (int c = 0; c < C; ++c)
#pragma unroll
      for (int e = 0; e < 2; ++e) {
        const int column = place.column(c, e);
        if (column >= columns) continue;  // branches, not choices: or all elements would be in registers at once
        const A x = A(widen(from[column]));
        if (is_finite(x)) continue;
#pragma unroll
        for (int i = 0; i < R; ++i)
          if (sees[i]) sums[i][c][e] = multiply_add(weight[i], x, sums[i][c][e]);
      }
  }
}

}  // namespace ringmpi
