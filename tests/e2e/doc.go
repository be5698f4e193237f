// Package e2e runs the server of internal/app in the process of the test, with both transports, and
// drives it with nvme/host over loopback TCP and over a fake RDMA fabric. It needs neither root nor
// hardware.
package e2e
