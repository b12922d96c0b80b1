#include "train/parameters.h"

#include <ATen/CPUGeneratorImpl.h>

#include <algorithm>
#include <cmath>
#include <filesystem>
#include <numeric>

#include "base/file_io.h"
#include "formats/safetensors.h"
#include "train/row_ops.h"

namespace aerie::train {
namespace {

namespace fs = std::filesystem;

at::Tensor copy_of(const float* data, at::IntArrayRef shape, at::ScalarType type) {
  // from_blob does not write; it only has no overload for constant memory.
  return at::from_blob(const_cast<float*>(data), shape, at::kFloat).to(type, false, /*copy=*/true);
}

/// In pieces, which are added up in order: the sum does not depend on the threads.
double squared_norm(const at::Tensor& x) {
  if (!row_ops_reach(x)) return x.to(at::kDouble).square().sum().item<double>();
  constexpr int64_t kPiece = 4096;
  const int64_t n = x.numel(), pieces = (n + kPiece - 1) / kPiece;
  std::vector<double> sums(static_cast<size_t>(pieces));
  with_row_types(x.scalar_type(), [&](auto, auto zero) {
    using A = decltype(zero);
    for_rows(pieces, kPiece, [&](int64_t begin, int64_t end, int) {
      for (int64_t piece = begin; piece < end; ++piece) {
        const A* values = values_of<A>(x) + piece * kPiece;
        sums[static_cast<size_t>(piece)] = row_ops<A, A>().dot(values, values, std::min(kPiece, n - piece * kPiece));
      }
    });
  });
  return std::accumulate(sums.begin(), sums.end(), 0.0);
}

/// The target's output rows of the draft vocabulary, [Vd, H].
at::Tensor head_rows(const TargetTensors& target, const DraftSpec& spec, at::ScalarType type) {
  const int64_t hidden = target.config.hidden;
  const std::vector<float>& matrix = target.output_matrix();
  at::Tensor rows = at::empty({spec.draft_vocab, hidden}, at::kFloat);
  for (int d = 0; d < spec.draft_vocab; ++d) {
    const float* source = matrix.data() + static_cast<int64_t>(spec.to_target(d)) * hidden;
    std::copy(source, source + hidden, rows.data_ptr<float>() + d * hidden);
  }
  return rows.to(type);
}

TensorView view_of(const std::string& name, const at::Tensor& tensor) {
  TensorView view;
  view.name = name;
  view.type = DType::kF32;
  for (const int64_t size : tensor.sizes()) view.shape.push_back(static_cast<uint64_t>(size));
  view.data = {static_cast<const uint8_t*>(tensor.const_data_ptr()), tensor.nbytes()};
  return view;
}

constexpr const char* kChecksum = "sha256";

std::string sha256_of_text(const std::string& text) { return sha256_hex({reinterpret_cast<const uint8_t*>(text.data()), text.size()}); }

/// Of the values and of what is said beside them.
std::string checksum_of(const std::vector<TensorView>& tensors, const std::map<std::string, std::string>& metadata) {
  std::string all = tensors_id(tensors);
  for (const auto& [key, value] : metadata) {
    if (key != kChecksum) all += "\n" + key + " " + value;
  }
  return sha256_of_text(all);
}

}  // namespace

Parameters Parameters::initial(const DraftSpec& spec, const TargetTensors& target, HeadMode mode, uint64_t seed, at::ScalarType type) {
  Parameters parameters;
  at::Generator generator = at::detail::createCPUGenerator(seed);
  for (const DraftTensor& tensor : draft_tensors(spec)) {
    if (tensor.name == "embed_tokens") continue;
    const std::vector<int64_t> shape(tensor.shape.begin(), tensor.shape.end());
    Parameter p;
    p.name = tensor.name;
    p.decay = shape.size() == 2;
    if (p.name.ends_with("_bias")) {
      p.value = at::zeros(shape, at::kFloat).to(type);
    } else if (shape.size() == 1) {
      // Also the last norm: with the target's own weights, larger than one, the untrained drafter is wrong more loudly.
      p.value = at::ones(shape, at::kFloat).to(type);
    } else if (tensor.name == "lm_head" && mode != HeadMode::kFree) {
      p.value = head_rows(target, spec, type);
    } else {
      const double bound = 1.0 / std::sqrt(static_cast<double>(shape.back()));
      p.value = at::empty(shape, at::kFloat).uniform_(-bound, bound, generator).to(type);
    }
    if (tensor.name == "lm_head") {
      p.rate = mode == HeadMode::kWarm ? 0.1 : mode == HeadMode::kFree ? 1.0 : 0.0;
      if (mode != HeadMode::kFrozen) p.gradient = at::zeros_like(p.value);
    } else {
      p.value.set_requires_grad(true);
    }
    p.first = at::zeros(shape, p.value.options().requires_grad(false));
    p.second = at::zeros_like(p.first);
    parameters.list_.push_back(std::move(p));
  }
  return parameters;
}

void Parameters::move_to(const at::Device& device) {
  for (Parameter& p : list_) {
    const bool learned = p.value.requires_grad();
    p.value = p.value.detach().to(device).set_requires_grad(learned);
    for (at::Tensor* tensor : {&p.gradient, &p.first, &p.second}) {
      if (tensor->defined()) *tensor = tensor->to(device);
    }
  }
}

Status Parameters::take(const DraftCheckpoint& checkpoint) {
  const at::NoGradGuard no_grad;
  for (Parameter& p : list_) {
    const auto stored = checkpoint.tensors.find(p.name);
    if (stored == checkpoint.tensors.end()) return internal_error("the drafter has no {}", p.name);
    AERIE_ASSIGN(const std::vector<float> values, to_float(stored->second));
    if (static_cast<int64_t>(values.size()) != p.value.numel())
      return internal_error("the drafter's {} has {} values, expected {}", p.name, values.size(), p.value.numel());
    p.value.copy_(copy_of(values.data(), p.value.sizes(), p.value.scalar_type()));
  }
  return {};
}

Parameter* Parameters::find(const std::string& name) {
  const auto found = std::find_if(list_.begin(), list_.end(), [&](const Parameter& p) { return p.name == name; });
  return found == list_.end() ? nullptr : &*found;
}

DraftWeights<TorchOps> Parameters::view(const DraftSpec& spec, at::ScalarType matmul_type) const {
  std::map<std::string, const Parameter*> by_name;
  for (const Parameter& p : list_) by_name[p.name] = &p;
  DraftWeights<TorchOps> w;
  visit_weights(spec, w, [&](const std::string& name, at::Tensor& weight) {
    const auto found = by_name.find(name);
    if (found != by_name.end()) weight = found->second->decay ? found->second->value.to(matmul_type) : found->second->value;
  });
  return w;
}

at::Tensor Parameters::head_gradient() {
  Parameter* head = find("lm_head");
  return head == nullptr ? at::Tensor() : head->gradient;
}

void Parameters::zero_gradients() {
  for (Parameter& p : list_) {
    if (p.gradient.defined()) p.gradient.zero_();
    if (p.value.grad().defined()) p.value.mutable_grad().zero_();
  }
}

std::vector<at::Tensor> Parameters::gradients() {
  std::vector<at::Tensor> out;
  for (Parameter& p : list_) {
    if (p.rate == 0.0) continue;
    if (!p.gradient.defined() && !p.value.grad().defined()) p.value.mutable_grad() = at::zeros_like(p.value.detach());
    out.push_back(p.gradient.defined() ? p.gradient : p.value.mutable_grad());
  }
  return out;
}

std::vector<at::Tensor> Parameters::state() {
  std::vector<at::Tensor> out;
  for (Parameter& p : list_) out.insert(out.end(), {p.value, p.first, p.second});
  return out;
}

double Parameters::gradient_norm() const {
  double sum = 0;
  for (const Parameter& p : list_) {
    const at::Tensor gradient = p.gradient.defined() ? p.gradient : p.value.grad();
    if (gradient.defined()) sum += squared_norm(gradient.contiguous());
  }
  return std::sqrt(sum);
}

std::map<std::string, std::vector<float>> Parameters::values() const {
  std::map<std::string, std::vector<float>> values;
  for (const Parameter& p : list_) {
    const at::Tensor flat = p.value.detach().to(at::kBFloat16).to(at::kCPU, at::kFloat).contiguous();
    const float* data = flat.data_ptr<float>();
    values[p.name].assign(data, data + flat.numel());
  }
  return values;
}

Teacher make_teacher(const TargetTensors& target, const DraftSpec& spec, at::ScalarType state_type, at::ScalarType matmul_type,
                     const at::Device& device) {
  Teacher teacher;
  teacher.embedding = copy_of(target.embedding.data(), {target.config.vocab, target.config.hidden}, state_type).to(device);
  teacher.final_norm = copy_of(target.final_norm.data(), {target.config.hidden}, state_type).to(device);
  teacher.eps = target.config.rms_eps;
  teacher.head = head_rows(target, spec, matmul_type).to(device);
  return teacher;
}

std::string previous_state(const std::string& path) { return path + ".previous"; }

Status save_training_state(const std::string& path, const Parameters& parameters, const std::vector<int32_t>& d2t,
                           const std::map<std::string, std::string>& metadata) {
  std::vector<at::Tensor> held;
  std::vector<TensorView> views;
  for (const Parameter& p : parameters.list()) {
    for (const auto& [kind, tensor] : {std::pair("", p.value), {"adam_first.", p.first}, {"adam_second.", p.second}}) {
      held.push_back(tensor.detach().cpu());
      views.push_back(view_of(kind + p.name, held.back()));
    }
  }
  TensorView map;  // none where the draft vocabulary is the target's own
  map.name = "d2t";
  map.type = DType::kI32;
  map.shape = {d2t.size()};
  map.data = {reinterpret_cast<const uint8_t*>(d2t.data()), d2t.size() * sizeof(int32_t)};
  if (!d2t.empty()) views.push_back(map);
  std::map<std::string, std::string> all = metadata;
  all[kChecksum] = checksum_of(views, metadata);
  // `path` is whole at any moment: the writer renames over it, and the state before keeps a name of its own.
  std::error_code error;
  if (fs::exists(path, error)) {
    fs::remove(previous_state(path), error);
    fs::create_hard_link(path, previous_state(path), error);
    if (error) fs::copy_file(path, previous_state(path), fs::copy_options::overwrite_existing, error);  // a file system without links
    if (error) return io_error("{}: cannot be kept as {}: {}", path, previous_state(path), error.message());
  }
  return write_safetensors(path, views, all);
}

Status check_training_state(const SafetensorsFile& file) {
  const auto checksum = file.metadata().find(kChecksum);
  // States that earlier programs wrote have none.
  if (checksum != file.metadata().end() && checksum->second != checksum_of(file.tensors(), file.metadata())) {
    return corrupt("{}: its values are not those that were saved: the checksum differs", file.path());
  }
  return {};
}

Status load_training_state(const SafetensorsFile& file, Parameters& parameters) {
  const at::NoGradGuard no_grad;
  for (Parameter& p : parameters.list()) {
    const std::pair<std::string, at::Tensor*> parts[] = {
        {p.name, &p.value}, {"adam_first." + p.name, &p.first}, {"adam_second." + p.name, &p.second}};
    for (const auto& [name, tensor] : parts) {
      AERIE_ASSIGN(const TensorView* stored, file.find(name));
      const TensorView expected = view_of(name, *tensor);
      if (stored->type != DType::kF32 || stored->shape != expected.shape) {
        return corrupt("{}: tensor {}: expected F32 {}, found {} {}", file.path(), name, expected.shape_string(), dtype_name(stored->type),
                       stored->shape_string());
      }
      const std::vector<int64_t> shape(tensor->sizes().begin(), tensor->sizes().end());
      tensor->copy_(copy_of(reinterpret_cast<const float*>(stored->data.data()), shape, at::kFloat));
    }
  }
  return {};
}

}  // namespace aerie::train
