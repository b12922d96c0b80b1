# aerie-train, the only program that links LibTorch. Torch comes from CMAKE_PREFIX_PATH or from the wheel in .venv.
set(CMAKE_MESSAGE_LOG_LEVEL ERROR)  # its config warns of parts that the CPU wheel does not have and nobody needs
find_package(Torch CONFIG QUIET)
if(NOT Torch_FOUND)
  file(GLOB aerie_torch_dirs ${CMAKE_SOURCE_DIR}/.venv/lib/python3*/site-packages/torch/share/cmake)
  find_package(Torch CONFIG QUIET PATHS ${aerie_torch_dirs} NO_DEFAULT_PATH)
endif()
unset(CMAKE_MESSAGE_LOG_LEVEL)
if(NOT Torch_FOUND)
  message(FATAL_ERROR "AERIE_BUILD_TRAIN needs LibTorch, and none was found in CMAKE_PREFIX_PATH or in .venv. "
                      "Run: python3 -m venv .venv && .venv/bin/pip install torch==2.13.0 numpy")
endif()

# Its headers are not ours to warn about, and its folder also holds a copy of fmt that must not hide the one we link: searched
# after everything else, they are both.
add_library(aerie_torch INTERFACE)
target_link_libraries(aerie_torch INTERFACE ${TORCH_LIBRARIES})
foreach(target torch torch_library torch_cpu torch_cpu_library c10)
  if(TARGET ${target})
    set_property(TARGET ${target} PROPERTY INTERFACE_INCLUDE_DIRECTORIES "")
  endif()
endforeach()
foreach(directory ${TORCH_INCLUDE_DIRS})
  target_compile_options(aerie_torch INTERFACE "SHELL:-idirafter ${directory}")
endforeach()

# Only the parts below are used; they cost seconds a file, so they are compiled once.
aerie_library(train DEPS aerie_doctor aerie_torch)
# Loops over rows, once for each instruction set (train/row_ops.h).
set(row_ops_options "-O3;-fopenmp-simd;-fno-math-errno;-fno-trapping-math;-ffp-contract=fast;-Wno-psabi")
set(row_ops_avx2 "-mavx2;-mfma")
set(row_ops_avx512 "-mavx512f;-mavx512bw;-mavx512vl;-mavx512dq;-mfma;-mprefer-vector-width=512")
foreach(unit row_ops row_ops_avx2 row_ops_avx512)
  set(options ${row_ops_options})
  if(CMAKE_SYSTEM_PROCESSOR MATCHES "x86_64|AMD64")
    list(APPEND options ${${unit}})
  endif()
  set_source_files_properties(${CMAKE_SOURCE_DIR}/src/train/${unit}.cpp PROPERTIES SKIP_PRECOMPILE_HEADERS ON COMPILE_OPTIONS "${options}")
endforeach()
target_precompile_headers(aerie_train PRIVATE <ATen/ATen.h> <torch/csrc/autograd/autograd.h>)

add_executable(aerie-train ${CMAKE_SOURCE_DIR}/apps/aerie-train/main.cpp)
target_link_libraries(aerie-train PRIVATE aerie_flags aerie_train CLI11::CLI11)
set_target_properties(aerie-train PROPERTIES RUNTIME_OUTPUT_DIRECTORY ${CMAKE_BINARY_DIR})
