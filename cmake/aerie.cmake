# Helpers shared by every CMakeLists file of the project.

# Flags that every target of the project is compiled with. Contraction of a*b+c into one rounding is switched off, so
# that a kernel's bytes depend on its source alone and not on what the optimiser found.
add_library(aerie_flags INTERFACE)
target_compile_options(aerie_flags INTERFACE -Wall -Wextra -Wshadow -Werror -ffp-contract=off)
if(CMAKE_CXX_COMPILER_ID STREQUAL "GNU")
  # GCC 12 sees overlapping copies in its own std::string (GCC bug 105651).
  target_compile_options(aerie_flags INTERFACE -Wno-restrict)
endif()
target_include_directories(aerie_flags INTERFACE ${CMAKE_SOURCE_DIR}/src)
if(AERIE_SANITIZE)
  target_compile_options(aerie_flags INTERFACE -fsanitize=${AERIE_SANITIZE} -fno-sanitize-recover=all
                                               -fno-omit-frame-pointer)
  target_link_options(aerie_flags INTERFACE -fsanitize=${AERIE_SANITIZE})
endif()

# aerie_library(NAME DEPS ...): the static library aerie_NAME from src/NAME/**.cpp.
function(aerie_library name)
  cmake_parse_arguments(ARG "" "" "DEPS" ${ARGN})
  file(GLOB_RECURSE sources CONFIGURE_DEPENDS ${CMAKE_SOURCE_DIR}/src/${name}/*.cpp)
  if(NOT sources)  # a layer that is still empty
    file(WRITE ${CMAKE_BINARY_DIR}/empty.cpp "")
    set(sources ${CMAKE_BINARY_DIR}/empty.cpp)
  endif()
  add_library(aerie_${name} STATIC ${sources})
  target_link_libraries(aerie_${name} PUBLIC ${ARG_DEPS} PRIVATE aerie_flags)
  target_include_directories(aerie_${name} PUBLIC ${CMAKE_SOURCE_DIR}/src)
endfunction()

# Each ISA unit is one translation unit, compiled for that ISA and entered only after CPUID and the OS have said yes.
function(aerie_kernel_flags)
  if(CMAKE_SYSTEM_PROCESSOR MATCHES "x86_64|AMD64")
    set_source_files_properties(${CMAKE_SOURCE_DIR}/src/kernels/isa_avx2.cpp PROPERTIES
      COMPILE_OPTIONS "-O3;-mavx2;-mfma;-mf16c")
    set_source_files_properties(${CMAKE_SOURCE_DIR}/src/kernels/isa_avx_vnni.cpp PROPERTIES
      COMPILE_OPTIONS "-O3;-mavx2;-mavxvnni;-mfma;-mf16c")
    set_source_files_properties(${CMAKE_SOURCE_DIR}/src/kernels/isa_avx512.cpp PROPERTIES
      COMPILE_OPTIONS "-O3;-mavx512f;-mavx512bw;-mavx512vl;-mavx512dq;-mavx512vnni;-mfma;-mf16c;-mprefer-vector-width=512")
    set_source_files_properties(${CMAKE_SOURCE_DIR}/src/kernels/isa_amx.cpp PROPERTIES
      COMPILE_OPTIONS "-O3;-mavx512f;-mavx512bw;-mavx512vl;-mavx512dq;-mfma;-mf16c;-mamx-tile;-mamx-int8")
  endif()
endfunction()

# aerie_test(FOLDER DEPS ...): one test binary from tests/FOLDER/**.cpp, each case known to ctest by its own name.
function(aerie_test folder)
  cmake_parse_arguments(ARG "" "" "DEPS" ${ARGN})
  file(GLOB_RECURSE sources CONFIGURE_DEPENDS ${CMAKE_SOURCE_DIR}/tests/${folder}/*.cpp)
  if(NOT sources)
    return()
  endif()
  add_executable(test_${folder} ${sources})
  target_link_libraries(test_${folder} PRIVATE aerie_flags ${ARG_DEPS} GTest::gtest GTest::gtest_main rapidcheck rapidcheck_gtest)
  target_include_directories(test_${folder} PRIVATE ${CMAKE_SOURCE_DIR}/tests)
  target_compile_definitions(test_${folder} PRIVATE AERIE_SOURCE_DIR="${CMAKE_SOURCE_DIR}")
  # Tests run side by side: LibTorch's OpenMP threads would spin against each other for minutes.
  gtest_discover_tests(test_${folder} TEST_PREFIX ${folder}. DISCOVERY_TIMEOUT 120 PROPERTIES TIMEOUT 1800 ENVIRONMENT OMP_NUM_THREADS=1)
endfunction()
