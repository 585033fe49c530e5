// The tiles of keys that a block of rows meets, item by item in table order, within one in ascending order.
#pragma once

#include "problem.cuh"

namespace ringmpi {

// First local row of a block, first local key of a tile.
struct Corner {
  i64 row, key;
};

// A tile as it is met: place of the item in the list, number of the tile, and the head of a group that it is of.
struct Visit {
  int at, number, member;
};

// M rows from local row M `block` on; tiles of N keys at multiples of N. Each tile is met `members` times in a row: by
// the heads of a group, where they share the sums of the block.
template <int M, int N> struct Walk {
  const Work* work;
  int block, at, member, members;  // at: -1 after the last tile
  int number, stop;          // of the tile, and one past the last one of the item
  int full_start, full_stop; // tiles that all rows of the block see in full

  DEVICE Walk(const Work& of, int of_block, int of_members = 1)
      : work(&of), block(of_block), at(of.first[block]), member(0), members(of_members) {
    enter();
  }
  DEVICE bool done() const { return at < 0; }
  DEVICE const Item& item() const { return item_of(visit()); }
  DEVICE const Item& item_of(Visit of) const { return work->items[work->list[of.at]]; }
  DEVICE i64 first_row() const { return i64(block) * M; }
  DEVICE i64 tile() const { return i64(number) * N; }
  DEVICE Corner corner() const { return {first_row(), tile()}; }
  DEVICE Visit visit() const { return {at, number, member}; }

  DEVICE void next() {
    if (++member < members) return;
    member = 0;
    if (++number < stop) return;
    ++at;
    enter();
  }

  // Whether all rows of the block see all keys of the tile.
  DEVICE bool full() const { return full_start <= number && number < full_stop; }

  // Keys that a row of the block sees, counted from the tile: start <= c < stop.
  DEVICE int2 seen_by(int row) const {
    const i64 local = first_row() + row;
    if (local < item().row_start || local >= item().row_stop) return {0, 0};
    const Span span = keys_of(item(), local);
    return {int(least_of<i64>(most_of<i64>(span.start - tile(), 0), N)),
            int(least_of<i64>(most_of<i64>(span.stop - tile(), 0), N))};
  }

 private:
  // The first tile of item `at`, or of the first one after it that has any.
  DEVICE void enter() {
    for (const int end = work->first[block + 1]; at < end; ++at) {
      const i64 from = most_of(item().row_start, first_row()), to = least_of(item().row_stop, first_row() + M);
      const Span first = keys_of(item(), from), last = keys_of(item(), to - 1);
      number = int(first.start / N), stop = int((last.stop + N - 1) / N);
      full_start = int((last.start + N - 1) / N), full_stop = to - from == M ? int(first.stop / N) : 0;
      if (from < to && first.start < last.stop) return;
    }
    at = -1;
  }
};

}  // namespace ringmpi
