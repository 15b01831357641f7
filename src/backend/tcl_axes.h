// Named axes for a graph whose dimensions are numbers. TCL says with names what meets what, so
// every dimension becomes a list of atoms, found by unification: operands of one elementwise op
// share atoms, the K of a product is one list, a reshape regroups atoms and a transpose moves them.
#pragma once

#include <cstdint>
#include <map>
#include <set>
#include <utility>
#include <vector>

#include "ir/graph.h"

namespace npu::tcl {

using Atoms = std::vector<int>;     // outermost first
using Layout = std::vector<Atoms>;  // of each dimension; a dimension of size 1 has none

inline constexpr const char* kNoCommonAxes = "the reshape's sizes do not divide into common axes";

Atoms flattened(const Layout& layout);

class AxisTable {
 public:
  Atoms fresh(int64_t size);  // none for size 1
  // One new atom for each of `atoms`, all different.
  Atoms copy_of(const Atoms& atoms);
  // What atoms became by being split and joined.
  Atoms leaves(const Atoms& atoms) const;
  int64_t size(int leaf) const { return atoms_[static_cast<size_t>(leaf)].size; }
  // Makes the two lists one, splitting where boundaries differ. All or nothing: false where sizes
  // do not divide or where two atoms that stand in one tensor would become one.
  bool unify(const Atoms& a, const Atoms& b);
  // The atoms of one tensor: never to become one. False if two already are.
  bool keep_apart(const Atoms& atoms);
  bool distinct(const Atoms& atoms) const;
  // Splits both lists until they have equal sizes, one by one; they stay different.
  bool refine(const Atoms& a, const Atoms& b);

 private:
  struct Atom {
    int64_t size = 1;
    std::vector<int> becomes;  // what it was split into or joined with
    std::set<int> apart;
  };
  bool walk(const Atoms& a, const Atoms& b, bool join);
  void split(int atom, int64_t outer);
  void join(int from, int to);

  std::vector<Atom> atoms_;
};

using Renaming = std::map<int, int>;  // leaf → leaf
// `atoms` under the names that a reader sees.
Atoms renamed(Atoms atoms, const Renaming& renaming);

struct Axes {
  AxisTable table;
  std::vector<Layout> layouts;  // by node, in leaves
  // Where an operand's axes could not be unified with its user's (keys and queries come from the
  // same rows): the operand is read under other names. By user and position.
  std::map<std::pair<NodeId, size_t>, Renaming> renamings;

  Atoms atoms_of(NodeId id) const { return flattened(layouts[static_cast<size_t>(id)]); }
  const Renaming* renaming(NodeId user, size_t operand) const;
};

// Error: the node whose shapes do not divide into common axes.
Result<Axes> name_axes(const Graph& graph);

}  // namespace npu::tcl
