// The products of the backward pass, on panels, in registers: HIGH rows, or 6 or 4 columns, times up to one panel.
#pragma once

#include <type_traits>

#include "panels.h"
#include "work.h"

namespace ringmpi {

// to[0 ... HIGH)[column ...] = A[row ... row + HIGH)[0, depth) B[0, depth)[column ...], N vectors wide.
template <class T, int N>
__attribute__((noinline)) void store_rows(Panels<T> a, int64_t row, Panels<T> b, int64_t column, int64_t depth,
                                          T* to) {
  Vec<T> acc[HIGH][N];
  clear<T>(acc);
  multiply_rows(a, row, b, column, 0, depth, acc);
#pragma GCC unroll 8
  for (int i = 0; i < HIGH; ++i)
#pragma GCC unroll 4
    for (int v = 0; v < N; ++v) store(to + i * PANEL<T> + v * LANES<T>, acc[i][v]);
}

template <class T, int R, int N>
RINGMPI_INLINE void add(const Vec<T> (&acc)[R][N], T factor, T* to) {
#pragma GCC unroll 8
  for (int i = 0; i < R; ++i)
#pragma GCC unroll 4
    for (int v = 0; v < N; ++v) {
      T* x = to + i * PANEL<T> + v * LANES<T>;
      store(x, load(x) + acc[i][v] * factor);
    }
}

// C[row ...][column ...] += factor A[row ... row + HIGH)[first, end) B[first, end)[column ...]
template <class T, int N>
__attribute__((noinline)) void add_rows(Panels<T> a, int64_t row, Panels<T> b, int64_t column, Keys depth, T factor,
                                        Panels<T> c) {
  Vec<T> acc[HIGH][N];
  clear<T>(acc);
  multiply_rows(a, row, b, column, depth.start, depth.stop, acc);
  add<T>(acc, factor, c.at(row, column));
}

// C[key ...][column ...] += factor A^T[key ... key + R)[first, end) B[first, end)[column ...]
template <class T, int R, int N>
__attribute__((noinline)) void add_columns(Panels<T> a, int64_t key, Panels<T> b, int64_t column, Keys depth,
                                           T factor, Panels<T> c) {
  Vec<T> acc[R][N];
  clear<T>(acc);
  multiply_columns(a, key, b, column, depth.start, depth.stop, acc);
  add<T>(acc, factor, c.at(key, column));
}

template <int N> using Count = std::integral_constant<int, N>;

// use(Count<n>) for 1 <= n <= PANEL_VECS.
template <class Use> RINGMPI_INLINE void with_vectors(int64_t n, Use use) {
  if constexpr (PANEL_VECS > 2) {
    if (n == 4) return use(Count<4>{});
    if (n == 3) return use(Count<3>{});
  }
  if (n == 2) return use(Count<2>{});
  use(Count<1>{});
}

// use(column, Count<n>) for each panel of a matrix of `dim` columns; n: vectors that its columns fill.
template <class T, class Use> RINGMPI_INLINE void each_width(int64_t dim, Use use) {
  each_panel<T>(0, dim, [&](int64_t column, int64_t count) {
    with_vectors((count + LANES<T> - 1) / LANES<T>, [&](auto n) { use(column, n); });
  });
}

}  // namespace ringmpi
