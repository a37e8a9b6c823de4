// `_native.text`: the tokenizer of SentencePiece vocabularies. src/sixfold/text/spm.py is its only caller.
#pragma once

#include <nanobind/nanobind.h>
#include <nanobind/ndarray.h>

#include <cstdint>
#include <memory>
#include <stdexcept>
#include <string_view>
#include <vector>

#include "../text/spm.h"

namespace sixfold::text_bindings {

namespace nb = nanobind;

template <class T>
using Vector = nb::ndarray<const T, nb::ndim<1>, nb::c_contig, nb::device::cpu>;

constexpr size_t kMaxTokens = size_t{1} << 24;

inline std::string_view view_of(nb::handle value) {
  char* data = nullptr;
  Py_ssize_t size = 0;
  if (PyBytes_AsStringAndSize(value.ptr(), &data, &size) != 0) throw nb::python_error();
  return {data, static_cast<size_t>(size)};
}

inline std::shared_ptr<SpmVocabulary> make_vocabulary(const nb::list& tokens, const Vector<float>& scores,
                                                      const Vector<uint8_t>& ordinary, const Vector<int32_t>& byte_ids,
                                                      int32_t unknown_id) {
  const size_t n = tokens.size();
  if (n == 0 || n > kMaxTokens) throw std::invalid_argument("tokens: their number is out of range");
  if (scores.shape(0) != n || ordinary.shape(0) != n) {
    throw std::invalid_argument("scores and ordinary: one for each token");
  }
  if (byte_ids.shape(0) != 256) throw std::invalid_argument("byte_ids: one for each byte");
  for (size_t i = 0; i < 256; ++i) {
    if (byte_ids.data()[i] >= static_cast<int64_t>(n)) throw std::invalid_argument("byte_ids: out of range");
  }
  if (unknown_id >= static_cast<int64_t>(n)) throw std::invalid_argument("unknown_id: out of range");
  std::vector<std::string_view> texts;
  texts.reserve(n);
  for (nb::handle token : tokens) texts.push_back(view_of(token));
  return std::make_shared<SpmVocabulary>(texts, scores.data(), ordinary.data(), byte_ids.data(), unknown_id);
}

inline nb::list encode_batch(const SpmVocabulary& vocabulary, const nb::list& texts, bool prefix) {
  std::vector<std::string_view> views;  // of bytes objects, which `texts` keeps alive and nobody can change
  std::vector<nb::object> alive;
  for (nb::handle text : texts) {
    views.push_back(view_of(text));
    alive.push_back(nb::borrow(text));
  }
  std::vector<int32_t> ids;
  std::vector<size_t> ends;
  {
    nb::gil_scoped_release released;
    for (const std::string_view text : views) {
      vocabulary.encode(text, prefix, ids);
      ends.push_back(ids.size());
    }
  }
  nb::list found;
  size_t begin = 0;
  for (const size_t end : ends) {
    nb::list one;
    for (size_t i = begin; i < end; ++i) one.append(ids[i]);
    found.append(one);
    begin = end;
  }
  return found;
}

inline void bind_text(nb::module_& parent) {
  nb::module_ m = parent.def_submodule("text");
  nb::class_<SpmVocabulary>(m, "SpmVocabulary")
      .def(nb::new_(&make_vocabulary), nb::arg("tokens"), nb::arg("scores"), nb::arg("ordinary"), nb::arg("byte_ids"),
           nb::arg("unknown_id"))
      .def("encode_batch", &encode_batch, nb::arg("texts"), nb::arg("prefix"));
}

}  // namespace sixfold::text_bindings
