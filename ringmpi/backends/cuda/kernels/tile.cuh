// Tiles in shared memory: rows of 16-byte chunks. The chunks of a row change places, so that what one instruction reads
// lies in different banks: one chunk of eight rows; of float64, two chunks of four rows (g or 2 t + e, products.cuh).
#pragma once

#include "problem.cuh"

namespace ringmpi {

constexpr int WARPS = 4, THREADS = 32 * WARPS;

// Numbers in shared memory, from byte `start` on.
template <class Number> struct Numbers {
  int start;

  DEVICE Number* from(int n) const { return reinterpret_cast<Number*>(shared_memory() + start) + n; }
  DEVICE Number& operator[](int n) const { return *from(n); }
};

template <class T, int COLUMNS> struct Tile {
  static constexpr int IN_CHUNK = 16 / int(sizeof(T)), CHUNKS = COLUMNS / IN_CHUNK, ROW = COLUMNS * int(sizeof(T));
  static constexpr int TWISTED = CHUNKS % 8 == 0 ? 7 : 3;  // bits of the number of a chunk that change
  static_assert(CHUNKS % 4 == 0, "rows are multiples of 64 bytes");

  int start;  // byte of shared memory; an offset, since a pointer would take two registers

  // Where a chunk lies, in bytes.
  DEVICE int offset(int row, int number) const {
    return start + row * ROW + ((number & ~TWISTED) + ((number & TWISTED) ^ twist(row))) * 16;
  }
  // What lies `steps` chunks and `rows` rows (a multiple of 8) after an offset, where the number of its chunk has no bit in
  // common with `steps`. For constants this takes one instruction, or none: loops know where they read.
  template <class X> static DEVICE X* after(int offset, int steps, int rows) {
    return reinterpret_cast<X*>(shared_memory() + (offset ^ (steps & TWISTED) * 16) + (rows * ROW + (steps & ~TWISTED) * 16));
  }
  static DEVICE int twist(int row) {
    if (sizeof(T) == 8) return ((row & 3) ^ (row >> 2 & 1)) << 1;
    return CHUNKS % 8 == 0 ? row & 7 : row >> 1 & 3;
  }
  DEVICE T* at(int row, int column) const { return after<T>(offset(row, column / IN_CHUNK), 0, 0) + column % IN_CHUNK; }
};

// Rows `first_row` and on of one slab, for all threads; zeros where the array has no such row or column. Neighbours in a
// warp bring neighbours of a row.
template <int ROWS, class T, int COLUMNS>
DEVICE void load_tile(Tile<T, COLUMNS> tile, const unsigned char* slab, i64 row_stride, i64 first_row, i64 rows, int columns) {
  constexpr int CHUNKS = Tile<T, COLUMNS>::CHUNKS, IN_CHUNK = Tile<T, COLUMNS>::IN_CHUNK;
  constexpr int ACROSS = CHUNKS % 8 == 0 ? 8 : 4, DOWN = THREADS / ACROSS;
  const int there = int(least_of<i64>(rows - first_row, ROWS)), thread = opaque(thread_index());
  const unsigned char* from = slab + (first_row + thread / ACROSS) * row_stride;
#pragma unroll 1
  for (int row = thread / ACROSS; row < ROWS; row += DOWN, from += DOWN * row_stride)
#pragma unroll 4
    for (int chunk = thread % ACROSS; chunk < CHUNKS; chunk += ACROSS) {
      const bool valid = row < there && chunk * IN_CHUNK < columns;
      copy16_async(tile.at(row, chunk * IN_CHUNK), valid ? from + chunk * 16 : slab, valid);
    }
}

}  // namespace ringmpi
