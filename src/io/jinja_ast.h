// What a template's text means, as trees. Private to src/io.
#pragma once

#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "io/jinja_value.h"

namespace npu::jinja {

struct Expr;
using ExprPtr = std::unique_ptr<Expr>;

enum class ExprKind {
  kConstant,   // constant
  kName,       // text
  kList,       // args
  kTuple,      // args
  kDict,       // args: key, value, key, value, …
  kAttribute,  // args[0] . text
  kItem,       // args[0] [ args[1] ]
  kSlice,      // args[0] [ args[1] : args[2] : args[3] ], null where left out
  kCall,       // args[0] ( args[1…], named )
  kFilter,     // args[0] | text ( args[1…], named )
  kTest,       // args[0] is text ( args[1…] )
  kNegate,     // - args[0]
  kNot,        // not args[0]
  kBinary,     // args[0] text args[1], one of + - * / // %
  kConcat,     // args joined as text
  kCompare,    // args[0] operators[0] args[1] operators[1] args[2] …
  kAnd,        // args[0] and args[1]
  kOr,         // args[0] or args[1]
  kCondition,  // args[1] if args[0] else args[2], null where left out
};

struct Expr {
  ExprKind kind = ExprKind::kConstant;
  int line = 0;
  int depth = 1;  // of the tree, bounded by the parser
  std::string text;
  Value constant;
  std::vector<ExprPtr> args;
  std::vector<std::pair<std::string, ExprPtr>> named;
  std::vector<std::string> operators;
};

struct Node;
using Block = std::vector<Node>;

enum class NodeKind {
  kText,      // text
  kOutput,    // value
  kIf,        // value ? body : orelse
  kFor,       // for targets in value if condition: body, else: orelse
  kSet,       // targets = value, or targets[0].attribute = value
  kSetBlock,  // targets[0] = text of body
  kScope,     // body with its own variables ({% generation %})
  kBreak,
  kContinue,
};

struct Node {
  NodeKind kind = NodeKind::kText;
  int line = 0;
  std::string text;
  std::vector<std::string> targets;
  std::string attribute;
  ExprPtr value, condition;
  Block body, orelse;
};

}  // namespace npu::jinja
