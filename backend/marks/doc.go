// Package marks remembers the blocks of a namespace that are marked uncorrectable, for any storage:
// reads of them fail until they are written. From the first mark on, a channel passes IOs through
// the wrapper returned by Marks.Wrap:
//
//	read                 fails if one of its blocks is marked
//	write, write zeroes  removes the marks that its blocks had when it began, after the device has
//	                     completed it; data that would outlive a mark is durable by then
//	discard              is advice, and leaves marks unchanged
//	write uncorrectable  marks its blocks, and does not reach the device
//
// Marks of storage that outlives the target are in the Store before an IO that has changed them
// completes. One goroutine per namespace stores them, and stores all pending changes at once.
//
// The package imports the contract of backends. A wrapped channel belongs to its reactor; any
// goroutine may use Marks.
package marks
