// Backward attention (core/gradients.py), probabilities made again from the log_sum_exp of the forward pass.
//
//   p = e^(s - log_sum_exp)    dS = p (dO V^T - delta)    dQ += scale dS K    dK += scale dS^T Q    dV += p^T dO
//
// Tile by tile (backward_tile.h), in an order that no number of threads changes (backward_columns.h).
#include "backward.h"

#include "backward_columns.h"
#include "backward_tile.h"
#include "threads.h"

namespace ringmpi {
namespace {

// The memory of one thread, carved from one buffer.
template <class T> class Carver {
 public:
  Carver(Buffer* buffer, int64_t size) : next_(buffer ? buffer->take<T>(size) : nullptr) {}
  T* carve(int64_t count) {
    T* start = next_ ? next_ + used_ : nullptr;
    used_ += padded(count, int64_t(64 / sizeof(T)));
    return start;
  }
  Panels<T> panels(int64_t rows, int64_t columns) { return {carve(Panels<T>::size(rows, columns)), rows}; }
  int64_t used() const { return used_; }

 private:
  T* next_;
  int64_t used_ = 0;
};

template <class T> struct Scratch {
  KeyTile<T> keys;
  RowTile<T> rows;
  Panels<T> weights, gradient, clean_query, clean_upstream;
  Beside<T>* beside;
  int64_t size;

  static Scratch in(Buffer* buffer, const Problem& p, int64_t size) {
    Carver<T> carver(buffer, size);
    Scratch s{};
    s.keys.key = carver.panels(TILE_KEYS, p.head_dim), s.keys.value = carver.panels(TILE_KEYS, p.value_dim);
    s.keys.key_transposed = carver.panels(p.head_dim, TILE_KEYS);
    s.keys.value_transposed = carver.panels(p.value_dim, TILE_KEYS);
    s.keys.key_gradient = carver.panels(TILE_KEYS, p.head_dim);
    s.keys.value_gradient = carver.panels(TILE_KEYS, p.value_dim);
    s.rows.query = carver.panels(ROOM, p.head_dim), s.rows.upstream = carver.panels(ROOM, p.value_dim);
    s.rows.gradient = carver.panels(ROOM, p.head_dim);
    s.rows.log_sum_exp = carver.carve(ROOM), s.rows.delta = carver.carve(ROOM);
    s.weights = carver.panels(ROOM, TILE_KEYS), s.gradient = carver.panels(ROOM, TILE_KEYS);
    s.clean_query = p.finite ? s.rows.query : carver.panels(ROOM, p.head_dim);
    s.clean_upstream = p.finite ? s.rows.upstream : carver.panels(ROOM, p.value_dim);
    s.beside = reinterpret_cast<Beside<T>*>(carver.carve(sizeof(Beside<T>) / sizeof(T)));
    s.size = carver.used();
    return s;
  }
};

template <class T> class BackwardPass {
 public:
  BackwardPass(Engine& engine, Backward& call)
      : engine_(engine), call_(call), p_(call.problem), poll_(p_.poll),
        items_(reinterpret_cast<const Item*>(p_.work)), columns_(items_, p_.items, p_.keys),
        slabs_(p_.batch * p_.key_heads), turns_(slabs_, p_.queries),
        slopes_(p_.slopes ? columns_.count() * p_.batch * p_.query_heads : 0) {}

  bool run() {
    const Job job = [this](int64_t, int worker) { column(worker); };
    engine_.pool().run(columns_.count() * slabs_, job, poll_);
    p_.attended = attended_;
    for (size_t i = 0; i < slopes_.size(); ++i) call_.slope[i % size_t(p_.query_heads)] -= slopes_[i];
    return !poll_.stopped();
  }

 private:
  // The next task: all that the keys of one tile and one key head have to do with.
  void column(int worker) {
    std::vector<Visit> visits;
    std::vector<int64_t> before;
    int64_t task;
    {
      std::lock_guard<std::mutex> lock(begin_);
      task = begun_++;
      columns_.visits(columns_.tile(task / slabs_), visits);
      for (size_t i = 0; i < visits.size(); ++i)
        if (!i || visits[i].tile != visits[i - 1].tile)
          before.push_back(turns_.queue(task % slabs_, visits[i].tile, task));
    }
    const int64_t size = Scratch<T>::in(nullptr, p_, 0).size;
    Scratch<T> scratch = Scratch<T>::in(&engine_.scratch[worker], p_, size);
    const int64_t slab = task % slabs_;
    int64_t pairs = 0;
    load_keys(scratch, slab, columns_.tile(task / slabs_));
    auto turn = before.begin();
    for (auto visit = visits.begin(); visit != visits.end() && !poll_.stopped();) {
      const int64_t tile = visit->tile;
      if (call_.query.data)
        turns_.wait(slab, tile, *turn++, [&] { return breathe(worker), !poll_.stopped(); });
      auto end = visit;
      while (end != visits.end() && end->tile == tile) ++end;
      for (int64_t head = 0; head < p_.group(); ++head)
        pairs += meet(scratch, {slab, head, task}, visit, end, visits.end()), breathe(worker);
      turns_.leave(slab, tile, task);
      visit = end;
    }
    store_keys(scratch, slab);
    attended_ += pairs;
  }

  void breathe(int worker) {
    if (worker == 0) poll_.breathe();
  }

  using Visits = std::vector<Visit>::const_iterator;

  // The nth query head of a slab, in a task.
  struct Place {
    int64_t slab, nth, task;
  };

  // One query head and one row tile: the visits [visit, end) of those of a task, which end at `stop`.
  int64_t meet(Scratch<T>& scratch, Place place, Visits visit, Visits end, Visits stop) {
    const int64_t batch = place.slab / p_.key_heads, head = place.slab % p_.key_heads * p_.group() + place.nth;
    RowTile<T>& rows = scratch.rows;
    int64_t last = 0;
    rows.first = visit->tile * TILE_ROWS;
    int64_t first = rows.first + TILE_ROWS;
    for (auto v = visit; v != end; ++v) first = std::min(first, v->row), last = std::max(last, v->row_end);
    load_rows(scratch, batch, head, first, last);
    const bool wants_query = call_.query.data, wants_keys = call_.key.data;
    Tile<T> tile{p_, wants_query, wants_keys, scratch.weights, scratch.gradient, *scratch.beside,
                 ahead(batch, head, place.nth + 1 < p_.group() ? visit : end, visit, stop)};
    for (auto v = visit; v != end; ++v) {
      const Item& item = items_[v->item];
      Sight sight;
      sight.row = v->row - rows.first, sight.row_end = v->row_end - rows.first;
      sight.key = std::max<int64_t>(item.key_start - scratch.keys.first, 0);
      sight.key_end = std::min(item.key_stop - scratch.keys.first, scratch.keys.count);
      sight.look(item, rows.first, scratch.keys.first);
      tile.add({p_, item, batch, head, rows.first, scratch.keys.first}, sight, rows, scratch.keys);
    }
    if (call_.query.data)
      from_panels<T>(shifted(rows.gradient, first - rows.first), first, last, p_.head_dim,
                     [&](int64_t i) { return call_.query.row(batch, head, i); }, call_.query.stride[3]);
    if (p_.slopes) slopes_[size_t((place.task / slabs_ * p_.batch + batch) * p_.query_heads + head)] += tile.slope;
    return tile.pairs;
  }

  // The rows that come next: of the next head of this row tile, or of the first head of the next.
  Ahead ahead(int64_t batch, int64_t head, Visits next, Visits visit, Visits stop) {
    const int64_t next_head = next == visit ? head + 1 : head / p_.group() * p_.group();
    Ahead result{{{&p_.q, p_.head_dim * size_of_}, {&call_.grad_output, p_.value_dim * size_of_},
                  {&call_.query, call_.query.data ? p_.head_dim * int64_t(sizeof(T)) : 0}},
                 batch, next_head, 0, 0};
    if (next != stop) result.row = next->row, result.end = next->row_end;
    return result;
  }

  static Panels<T> shifted(Panels<T> x, int64_t rows) { return {x.data + rows * PANEL<T>, x.rows}; }

  void load_rows(Scratch<T>& s, int64_t batch, int64_t head, int64_t first, int64_t last) {
    RowTile<T>& rows = s.rows;
    const int64_t offset = first - rows.first, count = last - first;
    const auto load = [&](const Array& array, int64_t dim, int64_t dtype, Panels<T> to, T factor = 1) {
      to_panels<T>([&](int64_t i) { return array.row(batch, head, i); }, array.stride[3], first, last, dim, dtype,
                   factor, shifted(to, offset));
    };
    load(p_.q, p_.head_dim, p_.dtype, rows.query, T(p_.softcap ? p_.scale / p_.softcap : p_.scale));
    load(call_.grad_output, p_.value_dim, p_.dtype, rows.upstream);
    if (call_.query.data) load(call_.query, p_.head_dim, DTYPE<T>, rows.gradient);
    for (int64_t i = first; i < last; ++i) {
      T x;
      std::memcpy(&x, call_.log_sum_exp.row(batch, head, i), sizeof x);
      rows.log_sum_exp[i - rows.first] = x == -INF<T> ? T(0) : x;
      std::memcpy(&rows.delta[i - rows.first], call_.delta.row(batch, head, i), sizeof x);
    }
    rows.clean_query = s.clean_query, rows.clean_upstream = s.clean_upstream, rows.special = false;
    if (p_.finite) return;
    cleaned(shifted(rows.query, offset), count, p_.head_dim, shifted(s.clean_query, offset));
    rows.special = cleaned(shifted(rows.upstream, offset), count, p_.value_dim, shifted(s.clean_upstream, offset));
  }

  void load_keys(Scratch<T>& s, int64_t slab, int64_t tile) {
    KeyTile<T>& keys = s.keys;
    const int64_t batch = slab / p_.key_heads, head = slab % p_.key_heads;
    keys.first = tile * TILE_KEYS, keys.count = std::min(TILE_KEYS, p_.keys - keys.first);
    const auto load = [&](const Array& array, int64_t dim, int64_t dtype, Panels<T> to) {
      to_panels<T>([&](int64_t i) { return array.row(batch, head, i); }, array.stride[3], keys.first,
                   keys.first + keys.count, dim, dtype, T(1), to);
    };
    load(p_.k, p_.head_dim, p_.dtype, keys.key);
    load(p_.v, p_.value_dim, p_.dtype, keys.value);
    transpose(keys.key, keys.count, p_.head_dim, keys.key_transposed);
    transpose(keys.value, keys.count, p_.value_dim, keys.value_transposed);
    if (!p_.finite) cleaned(keys.key, keys.count, p_.head_dim, keys.key);
    if (!call_.key.data) return;
    load(call_.key, p_.head_dim, DTYPE<T>, keys.key_gradient);
    load(call_.value, p_.value_dim, DTYPE<T>, keys.value_gradient);
  }

  void store_keys(Scratch<T>& s, int64_t slab) {
    if (!call_.key.data) return;
    const int64_t batch = slab / p_.key_heads, head = slab % p_.key_heads, first = s.keys.first;
    const auto store = [&](const Array& array, int64_t dim, Panels<T> from) {
      from_panels<T>(from, first, first + s.keys.count, dim, [&](int64_t i) { return array.row(batch, head, i); },
                     array.stride[3]);
    };
    store(call_.key, p_.head_dim, s.keys.key_gradient);
    store(call_.value, p_.value_dim, s.keys.value_gradient);
  }

  Engine& engine_;
  Backward& call_;
  Problem& p_;
  Poll poll_;
  const Item* items_;
  const Columns columns_;
  const int64_t slabs_;
  const int64_t size_of_ = p_.dtype == FLOAT64 ? 8 : p_.dtype == FLOAT32 ? 4 : 2;
  Turns turns_;
  std::vector<double> slopes_;  // [columns][batch][query_heads], summed in this order
  std::mutex begin_;
  int64_t begun_ = 0;
  std::atomic<int64_t> attended_{0};
};

}  // namespace

bool attend_backward(Engine& engine, Backward& call) {
  return call.problem.dtype == FLOAT64 ? BackwardPass<double>(engine, call).run()
                                       : BackwardPass<float>(engine, call).run();
}

}  // namespace ringmpi
