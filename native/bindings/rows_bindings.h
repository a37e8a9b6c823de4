// A step's rows over the worker's slots. src/sixfold/executor/slots.py and model_runner.py are their only callers.
#pragma once

#include <nanobind/nanobind.h>
#include <nanobind/ndarray.h>

#include <stdexcept>

#include "step_rows.h"

namespace sixfold::rows_bindings {

namespace nb = nanobind;

// [6, rows]: the columns of a step, in the order of StepRows.
using Columns = nb::ndarray<const int32_t, nb::ndim<2>, nb::c_contig, nb::device::cpu>;
using Table = nb::ndarray<int32_t, nb::ndim<2>, nb::c_contig, nb::device::cpu>;
using Drawn = nb::ndarray<const int32_t, nb::ndim<1>, nb::c_contig, nb::device::cpu>;

inline StepRows rows_of(const Columns& columns) {
  if (columns.shape(0) < 6) throw std::invalid_argument("columns must be [6, rows]");
  const auto n = static_cast<int>(columns.shape(1));
  const int32_t* c = columns.data();
  return StepRows{n, c, c + n, c + 2 * n, c + 3 * n, c + 4 * n, c + 5 * n};
}

// state: [3, slots] generations, incarnations, lengths. tokens: [slots, width].
inline SlotTable slots_of(const Table& state, const Table& tokens) {
  const auto n = static_cast<int>(tokens.shape(0));
  if (state.shape(0) != 3 || static_cast<int>(state.shape(1)) != n)
    throw std::invalid_argument("state must be [3, slots]");
  int32_t* s = state.data();
  return SlotTable{n, static_cast<int>(tokens.shape(1)), tokens.data(), s, s + n, s + 2 * n};
}

inline void bind_rows(nb::module_& m) {
  m.def(
      "check_rows",
      [](const Columns& columns, const Table& state, const Table& tokens) {
        return static_cast<int>(check_rows(rows_of(columns), slots_of(state, tokens)));
      },
      nb::arg("columns").noconvert(), nb::arg("state").noconvert(), nb::arg("tokens").noconvert());
  m.def(
      "append_drawn",
      [](const Columns& columns, const Drawn& drawn, const Table& state, const Table& tokens) {
        const StepRows rows = rows_of(columns);
        if (static_cast<int>(drawn.size()) != rows.n) throw std::invalid_argument("drawn must be [rows]");
        append_drawn(rows, drawn.data(), slots_of(state, tokens));
      },
      nb::arg("columns").noconvert(), nb::arg("drawn").noconvert(), nb::arg("state").noconvert(),
      nb::arg("tokens").noconvert());
}

}  // namespace sixfold::rows_bindings
