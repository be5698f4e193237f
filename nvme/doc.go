// Package nvme has the wire formats of NVM Express that do not depend on a transport: queue
// entries, SGL descriptors, statuses, opcodes, identify data, features, log pages, Fabrics
// commands, discovery entries and NQN rules.
//
// It imports the standard library only. What the I/O path uses are arrays with accessor methods,
// converted once after a length check; see Record for the others. Of enumerations and bit masks
// only the values that this module uses are declared. All integers are little-endian (Base section
// 1.4.3). "Base" in comments means the NVM Express Base Specification 2.1, "NVM" the NVM Command
// Set Specification 1.1, "TCP" and "RDMA" the transport specifications 1.1 and 1.0.
package nvme
