// Package live has the tests of changes while the target runs: random configurations are applied
// one after another to a running target, which must then look to hosts like one that was started
// with the same file, and must not disturb what no change touches.
package live
