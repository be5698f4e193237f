// Package nvme has the wire formats of NVM Express that do not depend on a transport: queue
// entries, SGL descriptors, statuses, opcodes, identify data, features, log pages, Fabrics
// commands, discovery entries and NQN rules.
//
// It imports the standard library only. Formats used on the I/O path are arrays with accessor
// methods, converted once after a length check; see Record for the others. Only the enumeration
// values and bits in use are declared. All integers are little-endian (Base section 1.4.3). "Base"
// in comments means the NVM Express Base Specification 2.1, "NVM" the NVM Command Set Specification
// 1.1, "TCP" and "RDMA" the transport specifications 1.1 and 1.0.
package nvme
