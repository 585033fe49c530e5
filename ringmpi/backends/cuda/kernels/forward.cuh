// Forward attention: a block of M = 8 R WARPS rows of one query head meets the tiles of N keys that it sees, and
// carries its Partial along (softmax.cuh has the formula).
//
//   T          of q, k, v: Float16, BFloat16, float, double
//   D          columns of q, k and v in shared memory; the arrays may have fewer
//   R          rows of a thread; 2 or 4 for 16 bit
//   N          keys of a tile
//   TERMS      products.cuh
//   EXTRAS     whether there are softcap, ALiBi, dropout and a way for NaN and inf. They take registers: those who ask
//              for none of these, and for rounded weights, get a kernel without
//   BLOCKS     of which a multiprocessor has room for at once
//
// Shared memory holds the rows of q, one tile of keys, one of values. While a product runs, what the next one needs is
// on its way: values during q k^T, the next keys during p v.
//
// The bits of a row depend on what it carried, on its q, and on the keys that it sees, in tiles at multiples of N: the
// row's place, the other rows and keys that it does not see change nothing.
#pragma once

#include "carried.cuh"
#include "softmax.cuh"
#include "special.cuh"

namespace ringmpi {

template <class T, int D, int R, int N, int TERMS, bool EXTRAS> class Attention {
  using A = Sum<T>;
  static constexpr int M = 8 * R * WARPS, ROW = D * sizeof(T);  // bytes

 public:
  DEVICE Attention(const Forward& call)
      : call_(call),
        p_(call.problem),
        batch_(block_index() % (p_.batch * p_.query_heads) / p_.query_heads),
        head_(block_index() % p_.query_heads),
        key_head_(head_ / (p_.query_heads / p_.key_heads)),
        walk_(p_.work, p_.work.order[block_index() / (p_.batch * p_.query_heads)]) {
    q_.start = 0, k_.start = M * ROW, v_.start = k_.start + N * ROW;
    seen_.start = v_.start + N * ROW, special_.start = seen_.start + M * int(sizeof(int2));
  }

  DEVICE void run() {
    if (walk_.done()) return;
    load_tile<M>(q_, p_.q.slab(batch_, head_), p_.q.row_stride, walk_.first_row(), p_.queries, p_.head_dim);
    load_keys();
    load_carried();
    while (!walk_.done()) step();
    store_carried();
    store_total(i64(pairs_), p_.attended);
  }

 private:
  DEVICE void load_keys() {
    load_tile<N>(k_, key_slab(p_.k), p_.k.row_stride, walk_.tile(), p_.keys, p_.head_dim);
    copies_commit();
  }
  DEVICE void load_values() {
    load_tile<N>(v_, key_slab(p_.v), p_.v.row_stride, walk_.tile(), p_.keys, p_.value_dim);
    copies_commit();
  }
  DEVICE const unsigned char* key_slab(const Array& array) const {
    return array.slab(opaque(batch_), opaque(key_head_));
  }

  // One tile of keys.
  DEVICE void step() {
    const bool full = walk_.full();
    if (!full && thread_index() < M) seen_[thread_index()] = walk_.seen_by(thread_index());
    copies_wait<0>();
    barrier();  // the keys have landed; no warp reads values any more
    load_values();
    scores_.clear();
    add_inner(scores_.s, q_, Place<R>().warp_row, k_);
    carried_.absorb(scores_, finish_scores(full));
    if (EXTRAS && p_.scoring.least)
      drop(scores_, p_.scoring, head_, batch_, walk_.item(), walk_.corner());
    copies_wait<0>();
    barrier();  // the values have landed; no warp reads keys any more
    add_values(full);
  }

  DEVICE Units<A> finish_scores(bool full) {
    const Units<A> units = scale_scores<EXTRAS>(scores_, p_.scoring);
    if (EXTRAS && p_.scoring.slopes)
      add_slope(scores_, A(p_.scoring.slopes[head_]), walk_.item(), walk_.corner());
    pairs_ += full ? R * N / 4 : exclude(scores_, seen_.from(0));
    touched_ |= full ? ~0u : rows_that_see<R>(seen_.from(0));
    return units;
  }

  // Weights times values, and on to the next tile.
  DEVICE void add_values(bool full) {
    const i64 tile = walk_.tile();
    if (!EXTRAS || p_.finite) {
      advance();
      add_outer<T, TERMS>(carried_.weighted_sum, scores_.s, v_);
      return;
    }
    if (full && thread_index() < M) seen_[thread_index()] = {0, N};
    const bool special = clean<N>(v_, special_.from(0));
    advance();
    if (special)
      add_special<T>(carried_.weighted_sum, scores_, seen_.from(0), special_.from(0), key_slab(p_.v) + tile * p_.v.row_stride,
                     p_.v.row_stride, p_.value_dim);
    add_outer<T, TERMS>(carried_.weighted_sum, scores_.s, v_);
    barrier();  // no warp needs `seen_` any more
  }
  DEVICE void advance() {
    walk_.next();
    if (!walk_.done()) load_keys();
  }

  // Rows of carried arrays before those of this head.
  DEVICE i64 rows_before() const { return (i64(batch_) * p_.query_heads + head_) * p_.queries; }
  DEVICE void load_carried() {
    const Block<R> rows{walk_.first_row(), p_.queries};
    load_rows(carried_.row_max, static_cast<const A*>(call_.row_max) + rows_before(), rows, -infinity<A>());
    load_rows(carried_.row_sum, static_cast<const A*>(call_.row_sum) + rows_before(), rows, A(0));
    load_sums(carried_.weighted_sum, weighted_sums(), rows, p_.value_dim);
  }
  // Rows that saw no key keep every bit.
  DEVICE void store_carried() {
    const Block<R> rows{walk_.first_row(), p_.queries, touched_};
    store_rows(carried_.row_max, static_cast<A*>(call_.row_max) + rows_before(), rows);
    store_rows(carried_.row_sum, static_cast<A*>(call_.row_sum) + rows_before(), rows);
    store_sums(carried_.weighted_sum, weighted_sums(), rows, p_.value_dim);
  }
  DEVICE A* weighted_sums() const { return static_cast<A*>(call_.weighted_sum) + rows_before() * p_.value_dim; }

  const Forward& call_;
  const Problem& p_;
  const int batch_, head_, key_head_;
  Walk<M, N> walk_;
  Tile<T, D> q_, k_, v_;
  Numbers<int2> seen_;    // [M]
  Numbers<int> special_;  // [N]
  Scores<A, R, N> scores_;
  Carried<A, R, D> carried_;
  u32 pairs_ = 0;  // of a thread: R / 4 of the keys at most, and memory is too small for 2^32 keys
  u32 touched_ = 0;  // bit i: row i has seen a key
};

template <class T, int D, int R, int N, int TERMS, bool EXTRAS, int BLOCKS>
KERNEL void __launch_bounds__(THREADS, BLOCKS) forward(const __grid_constant__ Forward call) {
  Attention<T, D, R, N, TERMS, EXTRAS>(call).run();
}

}  // namespace ringmpi
