// Matrices in panels: PANEL columns side by side, row after row, then the next PANEL columns.
//
//   element (r, c) of X  =  X.data[(c / PANEL * X.rows + r) PANEL + c % PANEL]
//
// The one layout serves both sides of a product: a panel is what `multiply` reads in vectors, and its scalars lie a
// fixed step apart along rows and columns, so X and its transpose can be broadcast without another copy.
#pragma once

#include "pack.h"

namespace ringmpi {

#if defined(__AVX512F__) || defined(__aarch64__)  // 32 registers: 6 x 4 sums, 4 vectors, broadcasts
constexpr int PANEL_VECS = 4;
#else  // 16 registers: 6 x 2 sums, 2 vectors, broadcasts
constexpr int PANEL_VECS = 2;
#endif
template <class T> constexpr int PANEL = PANEL_VECS * LANES<T>;
constexpr int HIGH = 6;  // rows of a product in registers

template <class T> struct Panels {
  T* data;
  int64_t rows;

  static int64_t size(int64_t rows, int64_t columns) { return padded(columns, PANEL<T>) * rows; }
  T* at(int64_t row, int64_t column) const {
    return data + (column / PANEL<T> * rows + row) * PANEL<T> + column % PANEL<T>;
  }
};

// Calls use(column, count) for the columns [first, end), panel by panel.
template <class T, class Use> RINGMPI_INLINE void each_panel(int64_t first, int64_t end, Use use) {
  for (int64_t column = first, next; column < end; column = next) {
    next = std::min(end, (column / PANEL<T> + 1) * PANEL<T>);
    use(column, next - column);
  }
}

// acc += A[row ... row + R)[first, end) B[first, end)[column ...]: columns of A times rows of B.
template <class T, int R, int N>
RINGMPI_INLINE void multiply_rows(Panels<T> a, int64_t row, Panels<T> b, int64_t column, int64_t first, int64_t end,
                                  Vec<T> (&acc)[R][N]) {
  each_panel<T>(first, end, [&](int64_t k, int64_t count) {
    multiply<T>(a.at(row, k), PANEL<T>, 1, b.at(k, column), PANEL<T>, count, acc);
  });
}

// acc += A^T[column ... column + R)[first, end) B[first, end)[b_column ...]: rows of A times rows of B.
template <class T, int R, int N>
RINGMPI_INLINE void multiply_columns(Panels<T> a, int64_t column, Panels<T> b, int64_t b_column, int64_t first,
                                     int64_t end, Vec<T> (&acc)[R][N]) {
  multiply<T>(a.at(first, column), 1, PANEL<T>, b.at(first, b_column), PANEL<T>, end - first, acc);
}

// Rows [first, end) of an array, times `factor`, to rows 0, 1, ... of `to`. row(i): address of row i.
template <class T, class Row>
inline void to_panels(Row row, int64_t step, int64_t first, int64_t end, int64_t dim, int64_t dtype, T factor,
                      Panels<T> to) {
  const bool plain = dtype == DTYPE<T> && step == int64_t(sizeof(T)) && dim % LANES<T> == 0;
  for (int64_t i = first; i < end; ++i) {
    const char* from = row(i);
    each_panel<T>(0, dim, [&](int64_t c, int64_t count) {
      T* at = to.at(i - first, c);
      if (plain)
        for (int64_t n = 0; n < count; n += LANES<T>) {
          Vec<T> x;
          std::memcpy(&x, from + (c + n) * int64_t(sizeof(T)), sizeof x);
          store(at + n, x * factor);
        }
      else {
        widen(from + c * step, step, count, dtype, at);
        for (int64_t n = 0; n < count; ++n) at[n] *= factor;
        std::memset(at + count, 0, size_t(PANEL<T> - count) * sizeof(T));
      }
    });
  }
}

// And back, in the dtype of sums.
template <class T, class Row>
inline void from_panels(Panels<T> from, int64_t first, int64_t end, int64_t dim, Row row, int64_t step) {
  for (int64_t i = first; i < end; ++i) {
    char* to = row(i);
    if (step == int64_t(sizeof(T)) && dim % PANEL<T> == 0)
      for (int64_t c = 0; c < dim; c += PANEL<T>)
        std::memcpy(to + c * int64_t(sizeof(T)), from.at(i - first, c), PANEL<T> * sizeof(T));
    else
      each_panel<T>(0, dim, [&](int64_t c, int64_t count) {
        narrow(from.at(i - first, c), count, to + c * step, step);
      });
  }
}

// X[rows][dim] to its transpose [dim][PANEL multiple]; columns beyond `rows` are zero.
template <class T> inline void transpose(Panels<T> from, int64_t rows, int64_t dim, Panels<T> to) {
  for (int64_t r = 0; r < rows; r += PANEL<T>) {
    const int64_t count = std::min<int64_t>(PANEL<T>, rows - r);
    each_panel<T>(0, dim, [&](int64_t c, int64_t columns) {
      transpose<T>(from.at(r, c), PANEL<T>, count, columns, to.at(c, r), PANEL<T>);
    });
    for (int64_t c = 0; c < dim && count < PANEL<T>; ++c)
      std::memset(to.at(c, r) + count, 0, size_t(PANEL<T> - count) * sizeof(T));
  }
}

// A copy, or `from` itself, with 0 in place of NaN and inf; whether there was any.
template <class T> inline bool cleaned(Panels<T> from, int64_t rows, int64_t dim, Panels<T> to) {
  bool any = false;
  for (int64_t c = 0; c < dim; c += PANEL<T>) {
    if (to.data != from.data) std::memcpy(to.at(0, c), from.at(0, c), size_t(rows * PANEL<T>) * sizeof(T));
    any |= clean(to.at(0, c), rows * PANEL<T>);
  }
  return any;
}

}  // namespace ringmpi
