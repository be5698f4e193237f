// Package gateways has the tests of tests/e2e with several targets on one image of Ceph.
package gateways
