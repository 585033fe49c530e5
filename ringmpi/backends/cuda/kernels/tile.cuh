// Tiles in shared memory: rows of 16-byte chunks. The chunks of a row change places (chunk ^ row), so that the eight
// rows that one instruction reads lie in different banks.
#pragma once

#include "problem.cuh"

namespace ringmpi {

constexpr int WARPS = 4, THREADS = 32 * WARPS;

template <class T, int COLUMNS> struct Tile {
  static constexpr int IN_CHUNK = 16 / int(sizeof(T)), CHUNKS = COLUMNS / IN_CHUNK;
  static_assert(CHUNKS % 4 == 0, "rows are multiples of 64 bytes");

  T* data;

  DEVICE T* chunk(int row, int number) const {
    constexpr int TWISTED = CHUNKS % 8 == 0 ? 7 : 3;  // bits of the number that change; the rest is left as it is, so
    const int twist = CHUNKS % 8 == 0 ? row & 7 : row >> 1 & 3;  // that most addresses differ by a constant
    return data + (row * CHUNKS + (number & ~TWISTED) + ((number & TWISTED) ^ twist)) * IN_CHUNK;
  }
  DEVICE T* at(int row, int column) const { return chunk(row, column / IN_CHUNK) + column % IN_CHUNK; }
};

// Rows `first_row` and on of one slab, for all threads; zeros where the array has no such row or column.
template <int ROWS, class T, int COLUMNS>
DEVICE void load_tile(Tile<T, COLUMNS> tile, const unsigned char* slab, i64 row_stride, i64 first_row, i64 rows, int columns) {
  constexpr int CHUNKS = Tile<T, COLUMNS>::CHUNKS, IN_CHUNK = Tile<T, COLUMNS>::IN_CHUNK;
#pragma unroll 4
  for (int n = thread_index(); n < ROWS * CHUNKS; n += THREADS) {
    const int row = n / CHUNKS, chunk = n % CHUNKS;
    const bool valid = first_row + row < rows && chunk * IN_CHUNK < columns;
    const unsigned char* from = slab + (first_row + row) * row_stride + chunk * 16;
    copy16_async(tile.chunk(row, chunk), valid ? from : slab, valid);
  }
}

}  // namespace ringmpi
