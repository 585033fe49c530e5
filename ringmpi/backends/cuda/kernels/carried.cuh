// What a block carries from call to call: sums of its rows, in dense arrays of the device.
#pragma once

#include "score.cuh"

namespace ringmpi {

// The rows of a block, of `length` in all. Bit i of `which`: row i of the thread takes part.
template <int R> struct Block {
  i64 first_row, length;
  u32 which = ~0u;

  // use(i, row): for rows that there are.
  template <class Use> DEVICE void each(Use use) const {
    const Place<R> place;
#pragma unroll
    for (int i = 0; i < R; ++i) {
      const i64 row = first_row + place.row(i);
      if (row < length && (which >> i & 1)) use(i, row);
    }
  }
};

// use(sum, element): for the sums of a thread and their places in an array [length][columns].
template <class A, int R, int C, class Use>
DEVICE void each_sum(A (&sums)[R][C][2], A* array, const Block<R>& rows, int columns, Use use) {
  const Place<R> place;
  rows.each([&](int i, i64 row) {
#pragma unroll
    for (int c = 0; c < C; ++c)
#pragma unroll
      for (int e = 0; e < 2; ++e)
        if (place.column(c, e) < columns) use(sums[i][c][e], array[row * columns + place.column(c, e)]);
  });
}

template <class A, int R, int C> DEVICE void load_sums(A (&sums)[R][C][2], A* array, const Block<R>& rows, int columns) {
#pragma unroll
  for (int i = 0; i < R; ++i)
#pragma unroll
    for (int c = 0; c < C; ++c) sums[i][c][0] = sums[i][c][1] = A(0);
  each_sum(sums, array, rows, columns, [](A& sum, const A& from) { sum = from; });
}
template <class A, int R, int C> DEVICE void store_sums(A (&sums)[R][C][2], A* array, const Block<R>& rows, int columns) {
  each_sum(sums, array, rows, columns, [](const A& sum, A& to) { to = sum; });
}

// One number a row; `none` where there is no row.
template <class A, int R> DEVICE void load_rows(A (&numbers)[R], const A* array, const Block<R>& rows, A none) {
#pragma unroll
  for (int i = 0; i < R; ++i) numbers[i] = none;
  rows.each([&](int i, i64 row) { numbers[i] = array[row]; });
}
template <class A, int R> DEVICE void store_rows(const A (&numbers)[R], A* array, const Block<R>& rows) {
  rows.each([&](int i, i64 row) {
    if (lane_index() % 4 == 0) array[row] = numbers[i];
  });
}

// Bit i: row i of the thread sees some column of the tile.
template <int R> DEVICE u32 rows_that_see(const int2* seen) {
  const Place<R> place;
  u32 rows = 0;
#pragma unroll
  for (int i = 0; i < R; ++i) rows |= u32(seen[place.row(i)].x < seen[place.row(i)].y) << i;
  return rows;
}

// The sum over a warp, to its element of an array [grid][WARPS].
template <class Number> DEVICE void store_total(Number own, Number* totals) {
#pragma unroll
  for (int mask = 1; mask < 32; mask *= 2) own += exchange(own, mask);
  if (lane_index() == 0) totals[i64(block_index()) * WARPS + thread_index() / 32] = own;
}

}  // namespace ringmpi
