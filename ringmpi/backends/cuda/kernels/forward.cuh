// Forward attention: a block of M = 8 R WARPS rows of one query head meets the tiles of N keys that it sees, and
// carries its Partial along (softmax.cuh has the formula).
//
//   T          of q, k, v: Float16, BFloat16, float, double
//   DQ, DV     columns of q and k, and of v, in shared memory; the arrays may have fewer
//   R          rows of a thread; 2 or 4 for 16 bit
//   TERMS      products.cuh
//   EXTRAS     whether there are softcap, ALiBi, dropout and a way for NaN and inf. They take registers: those who ask
//              for none of these get a kernel without. Bits are the same.
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

template <class T, int DQ, int DV, int R, int N, int TERMS, bool EXTRAS> class Attention {
  using A = Sum<T>;
  static constexpr int M = 8 * R * WARPS;

 public:
  DEVICE Attention(const Forward& call, unsigned char* memory)
      : call_(call),
        p_(call.problem),
        slab_(block_index() % (p_.batch * p_.query_heads)),
        batch_(int(slab_ / p_.query_heads)),
        head_(int(slab_ % p_.query_heads)),
        walk_(p_.work, p_.work.order[block_index() / (p_.batch * p_.query_heads)]) {
    q_.data = reinterpret_cast<T*>(memory);
    k_.data = q_.data + M * DQ;
    v_.data = k_.data + N * DQ;
    seen_ = reinterpret_cast<int2*>(v_.data + N * DV);
    special_ = reinterpret_cast<int*>(seen_ + M);
  }

  DEVICE void run() {
    if (walk_.done()) return;
    load_tile<M>(q_, p_.q.slab(batch_, head_), p_.q.row_stride, walk_.first_row(), p_.queries, p_.head_dim);
    load_keys();
    load_carried();
    while (!walk_.done()) step();
    store_carried();
    store_total(pairs_, p_.attended);
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
    return array.slab(batch_, head_ / (p_.query_heads / p_.key_heads));
  }

  // One tile of keys.
  DEVICE void step() {
    const bool full = walk_.full();
    if (!full && thread_index() < M) seen_[thread_index()] = walk_.seen_by(thread_index());
    copies_wait<0>();
    barrier();  // the keys have landed; no warp reads values any more
    load_values();
    scores_.clear();
    add_inner(scores_.s, q_, place_.warp_row, k_);
    finish_scores(full);
    carried_.absorb(scores_);
    if (EXTRAS && p_.scoring.least)
      drop(scores_, p_.scoring, head_, batch_, walk_.item(), walk_.corner());
    copies_wait<0>();
    barrier();  // the values have landed; no warp reads keys any more
    add_values(full);
  }

  DEVICE void finish_scores(bool full) {
    scale_scores<EXTRAS>(scores_, p_.scoring);
    if (EXTRAS && p_.scoring.slopes)
      add_slope(scores_, A(p_.scoring.slopes[head_]), walk_.item(), walk_.corner());
    if (full) {
      pairs_ += R * N / 4;
      touched_ = ~0u;
      return;
    }
    pairs_ += exclude(scores_, seen_);
    touched_ |= rows_that_see<R>(seen_);
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
    const bool special = clean<N>(v_, special_);
    advance();
    if (special)
      add_special<T>(carried_.weighted_sum, scores_, seen_, special_, key_slab(p_.v) + tile * p_.v.row_stride,
                     p_.v.row_stride, p_.value_dim);
    add_outer<T, TERMS>(carried_.weighted_sum, scores_.s, v_);
    barrier();  // no warp needs `seen_` any more
  }
  DEVICE void advance() {
    walk_.next();
    if (!walk_.done()) load_keys();
  }

  DEVICE void load_carried() {
    const Block<R> rows{walk_.first_row(), p_.queries};
    load_rows(carried_.row_max, static_cast<const A*>(call_.row_max) + slab_ * p_.queries, rows, -infinity<A>());
    load_rows(carried_.row_sum, static_cast<const A*>(call_.row_sum) + slab_ * p_.queries, rows, A(0));
    load_sums(carried_.weighted_sum, weighted_sums(), rows, p_.value_dim);
  }
  // Rows that saw no key keep every bit.
  DEVICE void store_carried() {
    const Block<R> rows{walk_.first_row(), p_.queries, touched_};
    store_rows(carried_.row_max, static_cast<A*>(call_.row_max) + slab_ * p_.queries, rows);
    store_rows(carried_.row_sum, static_cast<A*>(call_.row_sum) + slab_ * p_.queries, rows);
    store_sums(carried_.weighted_sum, weighted_sums(), rows, p_.value_dim);
  }
  DEVICE A* weighted_sums() const { return static_cast<A*>(call_.weighted_sum) + slab_ * p_.queries * p_.value_dim; }

  const Forward& call_;
  const Problem& p_;
  const i64 slab_;
  const int batch_, head_;
  const Place<R> place_;
  Walk<M, N> walk_;
  Tile<T, DQ> q_, k_;
  Tile<T, DV> v_;
  int2* seen_;      // [M]
  int* special_;    // [N]
  Scores<A, R, N> scores_;
  Carried<A, R, DV> carried_;
  i64 pairs_ = 0;
  u32 touched_ = 0;  // bit i: row i has seen a key
};

template <class T, int DQ, int DV, int R, int N, int TERMS, bool EXTRAS>
KERNEL void __launch_bounds__(THREADS, 1) forward(const Forward call) {
  SHARED_MEMORY(memory);
  Attention<T, DQ, DV, R, N, TERMS, EXTRAS>(call, memory).run();
}

}  // namespace ringmpi
