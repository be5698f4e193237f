// Package marks remembers which blocks of a namespace are marked uncorrectable, whatever its
// storage is: reads of them fail until they are written. From the first mark on a channel passes
// IOs through what Marks.Wrap makes of it:
//
//	read                 fails if one of its blocks is marked
//	write, write zeroes  takes away the marks of its blocks when the device has completed it, and
//	                     completes after that; data that would outlive the mark is durable by then
//	discard              is advice, and leaves marks as they are
//	write uncorrectable  marks its blocks, and does not reach the device
//
// Marks of storage that outlives the target are in the Store before an IO that has changed them
// completes. One goroutine for each namespace stores them, all changes at a time that there are.
//
// It imports the contract of backends. A wrapped channel belongs to its reactor; any goroutine may
// use Marks.
package marks
