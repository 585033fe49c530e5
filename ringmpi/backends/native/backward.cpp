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

constexpr int64_t WIDEST = 4;              // key tiles of a column
constexpr int64_t COLUMN_BYTES = 5 << 18;  // of the keys and values of a column, their transposes and gradients
constexpr int64_t COLUMNS_A_THREAD = 4;    // at least, so that threads end at about the same time

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
  KeyTile<T> keys[WIDEST];
  RowTile<T> rows;
  Panels<T> weights, gradient, clean_query, clean_upstream;
  Beside<T>* beside;
  int64_t size;

  static Scratch in(Buffer* buffer, const Problem& p, int64_t width, int64_t size) {
    Carver<T> carver(buffer, size);
    Scratch s{};
    for (int64_t n = 0; n < width; ++n) s.keys[n] = key_tile(carver, p);
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

  static KeyTile<T> key_tile(Carver<T>& carver, const Problem& p) {
    KeyTile<T> keys{};
    keys.key = carver.panels(TILE_KEYS, p.head_dim), keys.value = carver.panels(TILE_KEYS, p.value_dim);
    keys.key_transposed = carver.panels(p.head_dim, TILE_KEYS);
    keys.value_transposed = carver.panels(p.value_dim, TILE_KEYS);
    keys.key_gradient = carver.panels(TILE_KEYS, p.head_dim);
    keys.value_gradient = carver.panels(TILE_KEYS, p.value_dim);
    return keys;
  }
};

template <class T> class BackwardPass {
 public:
  BackwardPass(Engine& engine, Backward& call)
      : engine_(engine), call_(call), p_(call.problem), poll_(p_.poll),
        items_(reinterpret_cast<const Item*>(p_.work)), columns_(items_, p_.items, p_.keys),
        slabs_(p_.batch * p_.key_heads), turns_(slabs_, p_.queries),
        slopes_(p_.slopes ? columns_.tiles() * p_.batch * p_.query_heads : 0) {
    columns_.widen(width());
  }

  bool run() {
    const Job job = [this](int64_t, int worker) { column(worker); };
    engine_.pool().run(columns_.count() * slabs_, job, poll_);
    p_.attended = attended_;
    for (size_t i = 0; i < slopes_.size(); ++i) call_.slope[i % size_t(p_.query_heads)] -= slopes_[i];
    return !poll_.stopped();
  }

 private:
  // Key tiles of a column: as many as stay in the second-level cache, and leave columns enough for the threads. No bit
  // depends on it.
  int64_t width() const {
    const int64_t bytes = 3 * TILE_KEYS * (p_.head_dim + p_.value_dim) * int64_t(sizeof(T));
    const int64_t shared = columns_.tiles() * slabs_ / (COLUMNS_A_THREAD * engine_.pool().threads());
    return std::clamp<int64_t>(std::min(COLUMN_BYTES / bytes, shared), 1, WIDEST);
  }

  // The next task: all that the keys of one column and one key head have to do with.
  void column(int worker) {
    std::vector<Visit> visits;
    std::vector<int64_t> before;
    int64_t task;
    {
      std::lock_guard<std::mutex> lock(begin_);
      task = begun_++;
      columns_.visits(task / slabs_, visits);
      for (size_t i = 0; i < visits.size(); ++i)
        if (!i || visits[i].tile != visits[i - 1].tile)
          before.push_back(turns_.queue(task % slabs_, visits[i].tile, task));
    }
    const int64_t slab = task % slabs_, nth = task / slabs_;
    const int64_t first = columns_.first(nth), width = columns_.end(nth) - first;
    const int64_t size = Scratch<T>::in(nullptr, p_, columns_.width(), 0).size;
    Scratch<T> scratch = Scratch<T>::in(&engine_.scratch[worker], p_, columns_.width(), size);
    int64_t pairs = 0;
    for (int64_t n = 0; n < width; ++n) load_keys(scratch.keys[n], slab, columns_.tile(first + n));
    auto turn = before.begin();
    for (auto visit = visits.begin(); visit != visits.end() && !poll_.stopped();) {
      const int64_t tile = visit->tile;
      if (call_.query.data)
        turns_.wait(slab, tile, *turn++, [&] { return breathe(worker), !poll_.stopped(); });
      auto end = visit;
      while (end != visits.end() && end->tile == tile) ++end;
      for (int64_t head = 0; head < p_.group(); ++head)
        pairs += meet(scratch, {slab, head, first}, visit, end, visits.end()), breathe(worker);
      turns_.leave(slab, tile, task);
      visit = end;
    }
    for (int64_t n = 0; n < width; ++n) store_keys(scratch.keys[n], slab);
    attended_ += pairs;
  }

  void breathe(int worker) {
    if (worker == 0) poll_.breathe();
  }

  using Visits = std::vector<Visit>::const_iterator;

  // The nth query head of a slab, and the first key tile of a column.
  struct Place {
    int64_t slab, nth, key_tile;

    int64_t batch(const Problem& p) const { return slab / p.key_heads; }
    int64_t head(const Problem& p) const { return slab % p.key_heads * p.group() + nth; }
  };

  // One query head and one row tile: the visits [visit, end) of those of a task, which end at `stop`.
  int64_t meet(Scratch<T>& scratch, Place place, Visits visit, Visits end, Visits stop) {
    const int64_t batch = place.batch(p_), head = place.head(p_);
    RowTile<T>& rows = scratch.rows;
    int64_t last = 0;
    rows.first = visit->tile * TILE_ROWS;
    int64_t first = rows.first + TILE_ROWS;
    for (auto v = visit; v != end; ++v) first = std::min(first, v->row), last = std::max(last, v->row_end);
    load_rows(scratch, batch, head, first, last);
    Ahead next = ahead(batch, head, place.nth + 1 < p_.group() ? visit : end, visit, stop);
    int64_t pairs = 0;
    for (auto from = visit, to = visit; from != end; from = to) {
      while (to != end && to->nth == from->nth) ++to;
      pairs += meet_keys(scratch, place, from, to, next);
    }
    if (call_.query.data)
      from_panels<T>(shifted(rows.gradient, first - rows.first), first, last, p_.head_dim,
                     [&](int64_t i) { return call_.query.row(batch, head, i); }, call_.query.stride[3]);
    return pairs;
  }

  // And one key tile: all that the items of these visits name.
  int64_t meet_keys(Scratch<T>& scratch, Place place, Visits visit, Visits end, Ahead& next) {
    const int64_t batch = place.batch(p_), head = place.head(p_), key_tile = place.key_tile + visit->nth;
    const RowTile<T>& rows = scratch.rows;
    const KeyTile<T>& keys = scratch.keys[visit->nth];
    const bool wants_query = call_.query.data, wants_key = call_.key.data, wants_value = call_.value.data;
    Tile<T> tile{p_, wants_query, wants_key, wants_value, scratch.weights, scratch.gradient, *scratch.beside, next};
    for (auto v = visit; v != end; ++v) {
      const Item& item = items_[v->item];
      Sight sight;
      sight.row = v->row - rows.first, sight.row_end = v->row_end - rows.first;
      sight.key = std::max<int64_t>(item.key_start - keys.first, 0);
      sight.key_end = std::min(item.key_stop - keys.first, keys.count);
      sight.look(item, rows.first, keys.first);
      tile.add({p_, item, batch, head, rows.first, keys.first}, sight, rows, keys);
    }
    if (p_.slopes) slopes_[size_t((key_tile * p_.batch + batch) * p_.query_heads + head)] += tile.slope;
    return tile.pairs;
  }

  // The rows that come next: of the next head of this row tile, or of the first head of the next.
  Ahead ahead(int64_t batch, int64_t head, Visits next, Visits visit, Visits stop) {
    const int64_t next_head = next == visit ? head + 1 : head / p_.group() * p_.group();
    Ahead result{{{&p_.q, p_.head_dim * size_of_}, {&call_.grad_output, p_.value_dim * size_of_},
                  {&call_.query, call_.query.data ? p_.head_dim * int64_t(sizeof(T)) : 0}},
                 batch, next_head, 1, 0, 0};
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
    rows.spans.few = false;
    if (p_.finite && call_.value.data && p_.value_dim <= THIN)
      rows.spans.look(rows.upstream, offset, offset + count, p_.value_dim);
    if (p_.finite) return;
    cleaned(shifted(rows.query, offset), count, p_.head_dim, shifted(s.clean_query, offset));
    rows.special = cleaned(shifted(rows.upstream, offset), count, p_.value_dim, shifted(s.clean_upstream, offset));
  }

  void load_keys(KeyTile<T>& keys, int64_t slab, int64_t tile) {
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
    if (call_.key.data) load(call_.key, p_.head_dim, DTYPE<T>, keys.key_gradient);
    if (call_.value.data) load(call_.value, p_.value_dim, DTYPE<T>, keys.value_gradient);
  }

  void store_keys(const KeyTile<T>& keys, int64_t slab) {
    const int64_t batch = slab / p_.key_heads, head = slab % p_.key_heads, first = keys.first;
    const auto store = [&](const Array& array, int64_t dim, Panels<T> from) {
      from_panels<T>(from, first, first + keys.count, dim, [&](int64_t i) { return array.row(batch, head, i); },
                     array.stride[3]);
    };
    if (call_.key.data) store(call_.key, p_.head_dim, keys.key_gradient);
    if (call_.value.data) store(call_.value, p_.value_dim, keys.value_gradient);
  }

  Engine& engine_;
  Backward& call_;
  Problem& p_;
  Poll poll_;
  const Item* items_;
  Columns columns_;
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
