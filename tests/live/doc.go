// Package live tests changes while the target runs. It applies random configurations one after
// another to a running target. The target must then look to hosts like one that was started with
// the same file, and must not disturb anything unchanged.
package live
