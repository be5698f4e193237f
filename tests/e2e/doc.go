// Package e2e runs the server of internal/app in the process of the test, with both transports, and
// drives it with nvme/host over loopback TCP and over a fake RDMA fabric. It needs neither root nor
// hardware.
//
// The files without tests are shared with the packages below, which run in processes of their own:
// random compares random commands and losses of power with models, bench runs the load generator.
package e2e
