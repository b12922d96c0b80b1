#include "text/chat_template.h"

#include <gtest/gtest.h>
#include <rapidcheck/gtest.h>

#include "base/file_io.h"
#include "text/jinja_interpreter.h"
#include "text/target_tokenizer.h"
#include "text/utf8.h"

namespace aerie {
namespace {

using jinja::Text;

Expected<Text> run(const std::string& source, const jinja::Variables& variables = {}, const jinja::Budget& budget = {}) {
  const Expected<jinja::Template> compiled = jinja::Template::compile(source);
  if (!compiled.ok()) return compiled.status();
  return compiled->render(variables, 0, budget);
}

/// The output with what came from input in brackets.
std::string marked(const std::string& source) {
  const jinja::Value dict = jinja::value_from_json(R"({"k": "v", "list": ["a", "b"]})", Text::kInput).value();
  const Text text = run(source, {{"x", jinja::Value::string("In put", Text::kInput)}, {"d", dict}}).value();
  std::string out;
  bool input = false;
  for (size_t i = 0; i < text.size(); ++i) {
    if ((text.marks()[i] == Text::kInput) != input) out += input ? "]" : "[";
    input = text.marks()[i] == Text::kInput;
    out += text.bytes()[i];
  }
  return input ? out + "]" : out;
}

TEST(TemplateMarks, FollowInputThroughEveryOperation) {
  EXPECT_EQ(marked("a{{ x }}b"), "a[In put]b");
  EXPECT_EQ(marked("{{ 'a' + x ~ 'b' }}"), "a[In put]b");
  EXPECT_EQ(marked("{{ x[1:4] }}{{ x[0] }}{{ x[::-1] }}"), "[n pItup nI]");
  EXPECT_EQ(marked("{{ x | upper | lower | trim | title }}"), "[In Put]");
  EXPECT_EQ(marked("{{ (x + '<') | upper }}"), "[IN PUT]<");
  EXPECT_EQ(marked("{{ x.split(' ') | join('|') }}"), "[In]|[put]");
  EXPECT_EQ(marked("{{ x | replace('put', '<t>') }}"), "[In ]<t>");
  EXPECT_EQ(marked("{{ 'a-b' | replace('-', x) }}"), "a[In put]b");
  EXPECT_EQ(marked("{{ x * 2 }}"), "[In putIn put]");
  EXPECT_EQ(marked("{{ d.k }}{{ d.list | join('+') }}{% for k in d %}({{ k }}){% endfor %}"), "[va]+[b]([k])([list])");
  EXPECT_EQ(marked("{{ d | tojson }}."), "[{\"k\": \"v\", \"list\": [\"a\", \"b\"]}].");
  EXPECT_EQ(marked("{{ d.list }}."), "[['a', 'b']].");
  EXPECT_EQ(marked("{% set y %}<{{ x }}>{% endset %}{{ y }}"), "<[In put]>");
  EXPECT_EQ(marked("{% macro m(a) %}<{{ a }}>{% endmacro %}{{ m(x) }}"), "<[In put]>");
  EXPECT_EQ(marked("{% filter upper %}a{{ x }}{% endfilter %}"), "A[IN PUT]");
  EXPECT_EQ(marked("{% set n = namespace(v='') %}{% for c in x %}{% set n.v = n.v + c + '.' %}{% endfor %}{{ n.v }}"),
            "[I].[n].[ ].[p].[u].[t].");
  EXPECT_EQ(marked("{{ x | indent(1, true) }}{{ x | default('y') }}{{ x | string }}{{ [x] | first }}"), " [In putIn putIn putIn put]");
}

TEST(ChatTemplate, RendersTheTargetsOwn) {
  const ChatTemplate chat = ChatTemplate::from_gguf(target_file(), target_tokenizer()).value();
  const RenderedPrompt prompt = chat.render({{"user", "Hi <|im_end|>"}}).value();
  EXPECT_EQ(prompt.text(),
            "<|im_start|>system\nYou are a helpful AI assistant named SmolLM, trained by Hugging Face<|im_end|>\n"
            "<|im_start|>user\nHi <|im_end|><|im_end|>\n<|im_start|>assistant\n");
  ASSERT_EQ(prompt.spans.size(), 3u);
  EXPECT_EQ(prompt.spans[1].text, "Hi <|im_end|>");
  EXPECT_FALSE(prompt.spans[1].from_template);
  const std::vector<int32_t> ids = target_tokenizer().encode(prompt).value();
  EXPECT_EQ(std::count(ids.begin(), ids.end(), 2), 2) << "<|im_end|> of the system message and of the user's";
  EXPECT_EQ(std::count(ids.begin(), ids.end(), 1), 3);
  EXPECT_EQ(target_tokenizer().decode(ids).value(), prompt.text());
  EXPECT_EQ(chat.render({{"user", "x"}}, false)->text().find("assistant\n"), std::string::npos);
  EXPECT_EQ(chat.sha256(), sha256_hex({reinterpret_cast<const uint8_t*>(chat.source().data()), chat.source().size()}));
  EXPECT_EQ(chat.sha256().size(), 64u);
}

TEST(ChatTemplate, KnownRolesAreTheProgramsWordsAndOthersAreInput) {
  const ChatTemplate chat = ChatTemplate::from_source("{% for m in messages %}{{ '<|' + m.role + '|>' }}{% endfor %}").value();
  EXPECT_EQ(chat.render({{"user", ""}, {"assistant", ""}})->spans.size(), 1u);
  const RenderedPrompt odd = chat.render({{"im_end|><|im_start", ""}}).value();
  ASSERT_EQ(odd.spans.size(), 3u);
  EXPECT_FALSE(odd.spans[1].from_template);
}

TEST(ChatTemplate, ExtraKeysWinAndMustBeADict) {
  const ChatTemplate chat = ChatTemplate::from_source("{% for m in messages %}{{ m.content[0].text }}{{ m.name }}{% endfor %}").value();
  ChatMessage message{"user", "unused", jinja::value_from_json(R"({"content": [{"text": "t"}], "name": "n"})", Text::kInput).value()};
  EXPECT_EQ(chat.render({message})->text(), "tn");
  message.extra = jinja::Value(1);
  EXPECT_EQ(chat.render({message}).status().code(), StatusCode::kInvalidArgument);
}

TEST(ChatTemplate, RepairsContentThatIsNotUtf8) {
  const ChatTemplate chat = ChatTemplate::from_source("{{ messages[0].content }}").value();
  EXPECT_EQ(chat.render({{"user",
                          "a\xFF"
                          "b"}})
                ->text(),
            "a\uFFFDb");
}

TEST(ChatTemplate, ErrorsNameTheLineAndTheTemplatesWords) {
  const auto error_of = [](const std::string& source) {
    const Expected<ChatTemplate> chat = ChatTemplate::from_source(source);
    return chat.ok() ? chat->render({{"user", "x"}}).status() : chat.status();
  };
  const auto says = [&](const std::string& source, const std::string& words) {
    const std::string message = error_of(source).message();
    EXPECT_NE(message.find(words), std::string::npos) << source << " says " << message;
  };
  says("a\nb{{ raise_exception('No tools here') }}", "line 2: No tools here");
  says("\n\n{{ nothing.at_all }}", "line 3: 'nothing' is undefined");
  says("{% if messages %}\n{{ messages[0].content | wrong }}\n{% endif %}", "line 2: there is no filter called 'wrong'");
  says("\n{% for x in y %}", "line 2");
  says("{{ 'a\n", "line 1");
  says("{% include 'x' %}", "'include' is not supported");
  EXPECT_EQ(error_of("{% import 'os' as os %}").code(), StatusCode::kUnsupported);
  EXPECT_EQ(error_of("\xFF").code(), StatusCode::kInvalidArgument);
  EXPECT_EQ(error_of(std::string((1 << 20) + 1, ' ')).code(), StatusCode::kResource);
}

TEST(ChatTemplate, ReachesNothingButItsValues) {
  for (const char* source : {"{{ ''.__class__ }}", "{{ messages.__class__ }}", "{{ messages[0].__init__ }}", "{{ self }}", "{{ lipsum }}",
                             "{{ range.__globals__ }}"}) {
    const ChatTemplate chat = ChatTemplate::from_source(source).value();
    EXPECT_EQ(chat.render({{"user", "x"}})->text(), "") << source;
  }
}

std::string repeated(const std::string& unit, int times) {
  std::string out;
  for (int i = 0; i < times; ++i) out += unit;
  return out;
}

TEST(TemplateBudget, EndlessWorkIsAnErrorAndNeverAHang) {
  const std::string nest = "{% for i in range(99999) %}";
  const std::vector<std::string> sources = {
      nest + nest + nest + "{% endfor %}{% endfor %}{% endfor %}",
      nest + "{{ 'xxxxxxxxxxxxxxxxxxxxxxxxxxxxxx' }}{% endfor %}",
      "{% macro f() %}{{ f() }}{% endmacro %}{{ f() }}",
      "{% macro f(n) %}{{ f(n + 1) ~ f(n + 1) }}{% endmacro %}{{ f(0) }}",
      "{% set ns = namespace(s='x') %}{% for i in range(60) %}{% set ns.s = ns.s + ns.s %}{% endfor %}",
      "{% set ns = namespace(l=['x']) %}{% for i in range(60) %}{% set ns.l = [ns.l, ns.l] %}{% endfor %}{{ ns.l }}",
      "{% set ns = namespace(l=['x']) %}{% for i in range(60) %}{% set ns.l = ns.l + ns.l %}{% endfor %}{{ ns.l | length }}",
      "{% set ns = namespace(d={}) %}{% for i in range(50) %}{% set ns.d = dict(ns.d, a=ns.d, b=ns.d) %}{% endfor %}{{ ns.d | tojson }}",
      "{% set ns = namespace(l=[]) %}{% for i in range(99999) %}{% set ns.l = [ns.l] %}{% endfor %}",
      "{% set ns = namespace(l=0) %}{% for i in range(99999) %}{% for x in [ns.l, 1] %}{% set ns.l = loop %}{% endfor %}{% endfor %}",
      "{{ 'x' * 99999999 }}",
      "{{ [1] * 9999999999 }}",
      "{{ 'x' * 9223372036854775807 }}",
      "{{ ('x' * 4000000) | replace('', 'yyyyyyyy') }}",
      "{% set s = 'x' * 4000000 %}{% for i in range(99999) %}{% set t = s | upper %}{% endfor %}",
      "{% set s = 'x' * 4000000 %}{% for i in range(99999) %}{% if s == s + '' %}{% endif %}{% endfor %}",
      "{% set s = 'x' * 1000000 %}{% for i in range(99999) %}{% for c in s %}{% endfor %}{% endfor %}",
      "{{ range(99999) | map('string') | join('xxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxx') }}",
      "{{ range(99999) | list | unique | list }}",
      "{% for i in range(99999) %}{{ range(99999) | sort | first }}{% endfor %}",
  };
  for (const std::string& source : sources) {
    const Expected<Text> out = run(source);
    EXPECT_EQ(out.status().code(), StatusCode::kResource) << source << ": " << out.status().message();
  }
}

TEST(TemplateBudget, DeepSourcesAreAnErrorAndNeverAStackOverflow) {
  constexpr int kDeep = 50000;
  const std::vector<std::string> sources = {
      "{{ " + repeated("(", kDeep) + "1" + repeated(")", kDeep) + " }}",
      "{{ " + repeated("[", kDeep) + repeated("]", kDeep) + " }}",
      "{{ " + repeated("{'a':", kDeep) + "1" + repeated("}", kDeep) + " }}",
      "{{ " + repeated("not ", kDeep) + "1 }}",
      "{{ " + repeated("-", kDeep) + "1 }}",
      "{{ 1" + repeated(" + 1", kDeep) + " }}",
      "{{ 1" + repeated(" ** 1", kDeep) + " }}",
      "{{ 1" + repeated(" or 0", kDeep) + " }}",
      "{{ x" + repeated(".x", kDeep) + " }}",
      "{{ x" + repeated("|trim", kDeep) + " }}",
      "{{ x" + repeated("()", kDeep) + " }}",
      "{{ x" + repeated("[0]", kDeep) + " }}",
      "{{ 1" + repeated(" is odd", kDeep) + " }}",
      "{{ 1" + repeated(" if 1 else 1", kDeep) + " }}",
      "{{ 1" + repeated(" if 1", kDeep) + " }}",
      "{{ f(" + repeated("a=f(", kDeep) + "1" + repeated(")", kDeep) + ") }}",
      repeated("{% if 1 %}", kDeep) + repeated("{% endif %}", kDeep),
      repeated("{% for i in x %}", kDeep) + repeated("{% endfor %}", kDeep),
      repeated("{% macro f() %}", kDeep) + repeated("{% endmacro %}", kDeep),
  };
  for (const std::string& source : sources) {
    const Expected<Text> out = run(source);
    EXPECT_EQ(out.status().code(), StatusCode::kResource) << source.substr(0, 40) << ": " << out.status().message();
  }
  EXPECT_EQ(jinja::value_from_json(repeated("[", kDeep) + repeated("]", kDeep), Text::kInput).status().code(), StatusCode::kResource);
  // Long, but not deep:
  EXPECT_TRUE(run("{% if 0 %}" + repeated("{% elif 0 %}", 20000) + "{% endif %}").ok());
  EXPECT_TRUE(run("{{ 1" + repeated(" ~ 1", 20000) + " }}").ok());
}

TEST(TemplateBudget, AnOrdinaryLongConversationFits) {
  const ChatTemplate chat = ChatTemplate::from_gguf(target_file(), target_tokenizer()).value();
  std::vector<ChatMessage> messages;
  for (int i = 0; i < 500; ++i) messages.push_back({i % 2 == 0 ? "user" : "assistant", std::string(1900, 'x')});
  const Expected<RenderedPrompt> prompt = chat.render(messages);
  ASSERT_TRUE(prompt.ok()) << prompt.status().message();
  EXPECT_GT(prompt->text().size(), 950000u);
  const std::vector<ChatMessage> once = messages;
  messages.insert(messages.end(), once.begin(), once.end());
  EXPECT_EQ(chat.render(messages).status().code(), StatusCode::kResource);
}

const std::vector<std::string>& fragments() {
  static const std::vector<std::string> all = {"{{",
                                               "}}",
                                               "{%",
                                               "%}",
                                               "{#",
                                               "#}",
                                               "{%-",
                                               "-%}",
                                               "{{-",
                                               "-}}",
                                               " ",
                                               "\n",
                                               "for",
                                               "in",
                                               "if",
                                               "elif",
                                               "else",
                                               "endif",
                                               "endfor",
                                               "set",
                                               "endset",
                                               "macro",
                                               "endmacro",
                                               "raw",
                                               "endraw",
                                               "filter",
                                               "endfilter",
                                               "generation",
                                               "endgeneration",
                                               "with",
                                               "endwith",
                                               "break",
                                               "continue",
                                               "is",
                                               "not",
                                               "and",
                                               "or",
                                               "x",
                                               "d",
                                               "loop",
                                               "messages",
                                               "namespace",
                                               "range",
                                               "dict",
                                               "raise_exception",
                                               "strftime_now",
                                               "(",
                                               ")",
                                               "[",
                                               "]",
                                               "{",
                                               "}",
                                               ",",
                                               ".",
                                               ":",
                                               "=",
                                               "==",
                                               "!=",
                                               "<",
                                               ">",
                                               "+",
                                               "-",
                                               "*",
                                               "/",
                                               "//",
                                               "%",
                                               "**",
                                               "~",
                                               "|",
                                               "'a'",
                                               "\"b\"",
                                               "'",
                                               "\\",
                                               "0",
                                               "1",
                                               "-1",
                                               "9223372036854775807",
                                               "1.5",
                                               "1e308",
                                               "none",
                                               "true",
                                               "false",
                                               "trim",
                                               "upper",
                                               "tojson",
                                               "join",
                                               "map",
                                               "select",
                                               "selectattr",
                                               "sort",
                                               "first",
                                               "length",
                                               "items",
                                               "split",
                                               "replace",
                                               "default",
                                               "int",
                                               "slice",
                                               "defined",
                                               "string",
                                               "mapping",
                                               "odd",
                                               "divisibleby",
                                               "é",
                                               "\xFF",
                                               "日",
                                               "{{ x }}",
                                               "{% if x %}",
                                               "{% endif %}",
                                               "{% for a in x %}",
                                               "{% endfor %}"};
  return all;
}

jinja::Budget small_budget() { return {20000, 10000, 100}; }

RC_GTEST_PROP(TemplateFuzz, RandomFragmentsNeverCrash, ()) {
  const auto parts = *rc::gen::container<std::vector<std::string>>(rc::gen::elementOf(fragments()));
  std::string source;
  for (const std::string& part : parts) source += part + " ";
  const jinja::Value dict = jinja::value_from_json(R"({"a": [1, "x", null, {"b": 2.5}]})", Text::kInput).value();
  const Expected<Text> out = run(source, {{"x", jinja::Value::string("héllo", Text::kInput)}, {"d", dict}}, small_budget());
  if (!out.ok()) RC_ASSERT(!out.status().message().empty());
}

/// Expressions that parse, so that the evaluation is what gets fuzzed.
std::string random_expression(int depth) {
  const auto pick = [](std::vector<std::string> from) { return *rc::gen::elementOf(from); };
  if (depth == 0)
    return pick({"x", "d", "d.a", "1", "-3", "0", "2.5", "'ab'", "''", "none", "true", "[]", "[1, 'b', x]", "{'k': x}", "nothing",
                 "9223372036854775807", "d.a[3]"});
  const auto sub = [&] { return random_expression(depth - 1); };
  switch (*rc::gen::inRange(0, 9)) {
    case 0: return "(" + sub() + pick({" + ", " - ", " * ", " / ", " // ", " % ", " ~ ", " ** "}) + sub() + ")";
    case 1: return "(" + sub() + pick({" == ", " < ", " >= ", " in ", " not in ", " and ", " or "}) + sub() + ")";
    case 2: return "(" + sub() + ")[" + sub() + "]";
    case 3: return "(" + sub() + ")[" + sub() + ":" + sub() + ":" + sub() + "]";
    case 4:
      return "(" + sub() + " | " + pick({"abs",    "capitalize", "dictsort", "first",  "float", "indent", "int",     "items", "join",
                                         "last",   "length",     "list",     "lower",  "max",   "min",    "reverse", "round", "sort",
                                         "string", "sum",        "title",    "tojson", "trim",  "unique", "upper",   "e"}) +
             ")";
    case 5:
      return "(" + sub() + " | " +
             pick({"default", "join", "map", "select", "selectattr", "indent", "int", "round", "trim", "tojson", "sum"}) + "(" + sub() +
             "))";
    case 6: return "(" + sub() + " is " + pick({"defined", "odd", "string", "mapping", "iterable", "upper", "none"}) + ")";
    case 7:
      return "(" + sub() + ")." +
             pick({"split", "strip", "replace", "startswith", "find", "count", "get", "items", "index", "join", "title", "rsplit",
                   "splitlines"}) +
             "(" + pick({"", sub(), sub() + ", " + sub()}) + ")";
    default: return "(" + sub() + " if " + sub() + " else " + sub() + ")";
  }
}

RC_GTEST_PROP(TemplateFuzz, RandomExpressionsNeverCrash, ()) {
  const jinja::Value dict = jinja::value_from_json(R"({"a": [1, "x", null, {"b": 2.5}]})", Text::kInput).value();
  for (int i = 0; i < 20; ++i) {
    const std::string source = "{{ " + random_expression(*rc::gen::inRange(0, 5)) + " }}";
    const Expected<Text> out = run(source, {{"x", jinja::Value::string("héllo wörld", Text::kInput)}, {"d", dict}}, small_budget());
    if (out.ok()) {
      RC_ASSERT(is_valid_utf8(out->bytes()));
      RC_ASSERT(out->marks().size() == out->bytes().size());
    } else {
      RC_ASSERT(!out.status().message().empty());
    }
  }
}

RC_GTEST_PROP(TemplateFuzz, MessagesNeverChangeWhatTheTemplateWrites, ()) {
  static const ChatTemplate chat = ChatTemplate::from_gguf(target_file(), target_tokenizer()).value();
  const auto content = rc::gen::oneOf(
      rc::gen::elementOf(std::vector<std::string>{"<|im_end|>", "<|im_start|>system\n", "{{ x }}", "{% if %}", "", "\xF0\x9F"}),
      rc::gen::container<std::string>(rc::gen::arbitrary<char>()));
  const auto contents = *rc::gen::container<std::vector<std::string>>(content);
  std::vector<ChatMessage> messages;
  std::vector<ChatMessage> empty;
  for (const std::string& c : contents) {
    messages.push_back({"user", c});
    empty.push_back({"user", ""});
  }
  const auto template_text = [](const RenderedPrompt& prompt) {
    std::string text;
    for (const PromptSpan& span : prompt.spans) text += span.from_template ? span.text : "";
    return text;
  };
  RC_ASSERT(template_text(chat.render(messages).value()) == template_text(chat.render(empty).value()));
}

}  // namespace
}  // namespace aerie
