package observed

// PortCounter is a counter that a driver has of a port of an RDMA device.
type PortCounter struct {
	Device, Port, Counter string
	Value                 uint64
}

// Device counts the objects that the target has created on an RDMA device.
type Device struct {
	Name                                        string
	QueuePairs, CompletionQueues, MemoryRegions int64
	// The maximum numbers that the device has for all programs, 0 if it does not say.
	MaxQueuePairs, MaxCompletionQueues, MaxMemoryRegions int64
}
