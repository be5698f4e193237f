// Package cmwire is the private data of NVMe/RDMA in the messages of the RDMA communication
// manager: connect request, accept and reject (NVM Express RDMA Transport Specification 1.0,
// section 3.1.4, figures 5 to 7). All fields are little-endian.
//
// Records are named arrays. Parse functions take the private data from the communication manager,
// which some fabrics pad with zeroes to a fixed size, and copy only the record.
package cmwire
