package observed

import "time"

// Device counts the objects that the target has created on an RDMA device.
type Device struct {
	Name                                        string
	QueuePairs, CompletionQueues, MemoryRegions int64
	// The maximum numbers that the device has for all programs, 0 if it does not say.
	MaxQueuePairs, MaxCompletionQueues, MaxMemoryRegions int64
}

// Drive is the hardware of a namespace.
type Drive struct {
	// ID identifies the drive.
	ID string
	// Counts: the health of the drive has the traffic of the namespace.
	Counts bool
	// Answered is the time at which its health was last read; zero: never.
	Answered time.Time
}
