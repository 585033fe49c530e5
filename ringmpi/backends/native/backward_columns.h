// Who works when in the backward pass: tasks are columns of tiles, and every sum has one order.
//
// A task is a column: a few tiles of keys of one key head. It alone adds to the gradients of its keys, row tile after
// row tile, and a row tile is loaded once for all of them. The gradients of a row tile get the contributions of key
// tiles in ascending order too: a task waits at a row tile until the task before that meets the same rows has left it.
// Tasks are begun in ascending order, so the one that is waited for has begun, and neighbours follow each other down
// the rows like a wave. Any number of threads, and any width of columns, gives the same bits.
#pragma once

#include <atomic>
#include <chrono>
#include <mutex>
#include <thread>
#include <vector>

#include "backward_sight.h"

namespace ringmpi {

// Rows of one tile that see keys of one key tile by one item. `nth`: which key tile of the column.
struct Visit {
  int64_t tile, nth, item, row, row_end;  // local rows
};

// The key tiles that any item touches, and by which items, in the order of the table; columns of up to `width` of them.
class Columns {
 public:
  Columns(const Item* items, int64_t count, int64_t keys)
      : items_(items), start_(size_t(padded(keys, TILE_KEYS) / TILE_KEYS + 1)) {
    const auto each = [&](auto use) {
      for (int64_t i = 0; i < count; ++i)
        for (int64_t c = items[i].key_start / TILE_KEYS; c * TILE_KEYS < items[i].key_stop; ++c) use(c, i);
    };
    each([&](int64_t column, int64_t) { ++start_[column + 1]; });
    for (size_t c = 1; c < start_.size(); ++c) start_[c] += start_[c - 1];
    members_.resize(start_.back());
    std::vector<int64_t> next(start_);
    each([&](int64_t column, int64_t item) { members_[next[column]++] = item; });
    for (size_t c = 0; c + 1 < start_.size(); ++c)
      if (start_[c] < start_[c + 1]) touched_.push_back(int64_t(c));
  }

  void widen(int64_t width) { width_ = width; }
  int64_t width() const { return width_; }
  int64_t tiles() const { return int64_t(touched_.size()); }
  int64_t count() const { return (tiles() + width_ - 1) / width_; }
  int64_t first(int64_t column) const { return column * width_; }
  int64_t end(int64_t column) const { return std::min(first(column + 1), tiles()); }
  int64_t tile(int64_t nth) const { return touched_[nth]; }

  // Visits of a column, row tile by row tile, there key tile by key tile, there in the order of the table.
  void visits(int64_t column, std::vector<Visit>& out) const {
    out.clear();
    for (int64_t n = first(column); n < end(column); ++n) add_visits(tile(n), n - first(column), out);
    std::stable_sort(out.begin(), out.end(), [](const Visit& a, const Visit& b) { return a.tile < b.tile; });
  }

 private:
  void add_visits(int64_t key_tile, int64_t nth, std::vector<Visit>& out) const {
    for (int64_t m = start_[key_tile]; m < start_[key_tile + 1]; ++m) {
      const Item& item = items_[members_[m]];
      const int64_t key = std::max(item.key_start, key_tile * TILE_KEYS);
      const int64_t last = std::min(item.key_stop, (key_tile + 1) * TILE_KEYS) - 1;
      const int64_t first_row = ceil_div(item.key_position(key) - item.high - item.row_origin, item.row_stride);
      const int64_t last_row = floor_div(item.key_position(last) - item.low - item.row_origin, item.row_stride);
      const int64_t row = std::max(item.row_start, first_row), row_end = std::min(item.row_stop, last_row + 1);
      for (int64_t tile = row / TILE_ROWS; row < row_end && tile * TILE_ROWS < row_end; ++tile)
        out.push_back(
            {tile, nth, members_[m], std::max(row, tile * TILE_ROWS), std::min(row_end, (tile + 1) * TILE_ROWS)});
    }
  }

  const Item* items_;
  int64_t width_ = 1;
  std::vector<int64_t> start_, members_, touched_;
};

// Turns at the row tiles of every slab (batch and key head).
class Turns {
 public:
  Turns(int64_t slabs, int64_t rows)
      : tiles_(padded(rows, TILE_ROWS) / TILE_ROWS), last_(size_t(slabs * tiles_), -1), done_(size_t(slabs * tiles_)) {
    for (auto& done : done_) done.store(-1, std::memory_order_relaxed);
  }

  // Queues task `task` at a tile; tasks queue in ascending order. Whom it has to wait for.
  int64_t queue(int64_t slab, int64_t tile, int64_t task) { return std::exchange(last_[slab * tiles_ + tile], task); }

  template <class Idle> void wait(int64_t slab, int64_t tile, int64_t before, Idle idle) const {
    const auto& done = done_[slab * tiles_ + tile];
    for (int64_t turn = 0; done.load(std::memory_order_acquire) != before && idle(); ++turn) {
      if (turn > 300) std::this_thread::sleep_for(std::chrono::microseconds(50));  // about half a tile
      else if (turn > 100) std::this_thread::yield();
    }
  }
  void leave(int64_t slab, int64_t tile, int64_t task) {
    done_[slab * tiles_ + tile].store(task, std::memory_order_release);
  }

 private:
  const int64_t tiles_;
  std::vector<int64_t> last_;
  std::vector<std::atomic<int64_t>> done_;
};

}  // namespace ringmpi
