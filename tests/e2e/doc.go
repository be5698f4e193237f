// Package e2e runs the whole target in the test's process - reactors, controller, both transports,
// storage - and drives it with nvme/host over loopback TCP and over a fake RDMA fabric. It needs
// neither root nor hardware.
package e2e
