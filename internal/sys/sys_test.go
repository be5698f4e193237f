package sys

import (
	"os"
	"path/filepath"
	"runtime"
	"syscall"
	"testing"
	"unsafe"

	"golang.org/x/sys/unix"

	"github.com/nvmf-target/nvmf-target/internal/testing/testutil"
)

func socketPair(tb testing.TB) (a, b int) {
	tb.Helper()
	fds, err := unix.Socketpair(unix.AF_UNIX, unix.SOCK_STREAM|unix.SOCK_NONBLOCK|unix.SOCK_CLOEXEC,
		0)
	testutil.Must(tb, err)
	tb.Cleanup(func() { _, _ = unix.Close(fds[0]), unix.Close(fds[1]) })
	return fds[0], fds[1]
}

func vectors(parts ...[]byte) []Iovec {
	iov := make([]Iovec, len(parts))
	for i, p := range parts {
		SetIovec(&iov[i], p)
	}
	return iov
}

func TestVectored(t *testing.T) {
	a, b := socketPair(t)
	x, y := make([]byte, 4), make([]byte, 8)
	n, e := Recvmsg(b, vectors(x, y), 0)
	testutil.MustTrue(t, n == 0 && e == syscall.EAGAIN, "empty socket: %d, %v", n, e)
	n, e = Sendmsg(a, vectors([]byte("hello"), nil, []byte("world")), 0)
	testutil.MustTrue(t, n == 10 && e == 0, "send: %d, %v", n, e)
	n, e = Recvmsg(b, vectors(x, y), 0)
	testutil.MustTrue(t, n == 10 && e == 0 && string(x)+string(y[:6]) == "helloworld",
		"receive: %d, %v, %q %q", n, e, x, y)
	n, e = Sendmsg(a, vectors([]byte("one")), 0)
	testutil.MustTrue(t, n == 3 && e == 0, "send one vector: %d, %v", n, e)
	if n, e := Recvmsg(b, vectors(y), 0); n != 3 || e != 0 || string(y[:3]) != "one" {
		t.Fatalf("receive into one vector: %d, %v, %q", n, e, y)
	}
	testutil.Must(t, unix.Shutdown(a, unix.SHUT_WR))
	for _, iov := range [][]Iovec{vectors(x), vectors(x, y)} {
		n, e := Recvmsg(b, iov, 0)
		testutil.MustTrue(t, n == 0 && e == 0, "end of stream, %d vectors: %d, %v", len(iov), n, e)
	}
}

func TestSendRecv(t *testing.T) {
	a, b := socketPair(t)
	buf := make([]byte, 16)
	n, e := Recv(b, buf, 0)
	testutil.MustTrue(t, n == 0 && e == syscall.EAGAIN, "empty socket: %d, %v", n, e)
	n, e = Send(a, []byte("abc"), 0)
	testutil.MustTrue(t, n == 3 && e == 0, "send: %d, %v", n, e)
	n, e = Recv(b, buf, unix.MSG_PEEK)
	testutil.MustTrue(t, n == 3 && e == 0, "peek: %d, %v", n, e)
	n, e = Recv(b, buf, 0)
	testutil.MustTrue(t, n == 3 && e == 0 && string(buf[:3]) == "abc", "receive: %d, %v", n, e)
	n, e = Recv(-1, buf, 0)
	testutil.MustTrue(t, n == 0 && e == syscall.EBADF, "bad descriptor: %d, %v", n, e)
}

// TestBlockingSocket: the socket calls return at once even without O_NONBLOCK, and a broken
// connection is an error and not a signal.
func TestBlockingSocket(t *testing.T) {
	a, b := socketPair(t)
	testutil.Must(t, unix.SetNonblock(a, false))
	_, e := Recv(a, make([]byte, 1), 0)
	testutil.MustTrue(t, e == syscall.EAGAIN, "recv: %v", e)
	for _, iov := range [][]Iovec{
		vectors(make([]byte, 1)),
		vectors(make([]byte, 1), make([]byte, 1)),
	} {
		_, e := Recvmsg(a, iov, 0)
		testutil.MustTrue(t, e == syscall.EAGAIN, "recvmsg with %d vectors: %v", len(iov), e)
	}
	big := make([]byte, 1<<20)
	for range 100 {
		if _, e := Sendmsg(a, vectors(big, big), 0); e == syscall.EAGAIN {
			testutil.Must(t, unix.Shutdown(b, unix.SHUT_RDWR))
			for _, iov := range [][]Iovec{vectors(big), vectors(big, big)} {
				if _, e := Sendmsg(a, iov, 0); e != syscall.EPIPE {
					t.Fatalf("sendmsg with %d vectors on a closed connection: %v", len(iov), e)
				}
			}
			if _, e := Send(a, big, 0); e != syscall.EPIPE {
				t.Fatalf("send on a closed connection: %v", e)
			}
			return
		}
	}
	t.Fatal("the socket never filled up")
}

func TestAdvance(t *testing.T) {
	for n := 0; n <= 9; n++ {
		iov := Advance(vectors([]byte("abc"), nil, []byte("defg"), []byte("hi")), n)
		a, b := socketPair(t)
		if n == 9 {
			testutil.MustEqual(t, len(iov), 0, "vectors are left")
			continue
		}
		if m, e := Sendmsg(a, iov, 0); e != 0 || m != 9-n {
			t.Fatalf("n = %d: wrote %d, %v", n, m, e)
		}
		buf := make([]byte, 16)
		m, _ := Recv(b, buf, 0)
		testutil.EqualSlices(t, buf[:m], []byte("abcdefghi")[n:], "n = %d", n)
	}
}

func TestPositioned(t *testing.T) {
	f := testutil.Value(os.CreateTemp(t.TempDir(), ""))(t)
	defer func() { _ = f.Close() }()
	fd := int(f.Fd())
	const off = 5<<32 + 7 // both halves of the offset matter
	if n, e := Pwritev2(fd, vectors([]byte("hello"), []byte("world")), off,
		unix.RWF_DSYNC); n != 10 || e != 0 {
		t.Fatalf("write: %d, %v", n, e)
	}
	x, y := make([]byte, 4), make([]byte, 8)
	n, e := Preadv2(fd, vectors(x, y), off+1, 0)
	testutil.MustTrue(t, n == 9 && e == 0 && string(x)+string(y[:5]) == "elloworld",
		"read: %d, %v, %q %q", n, e, x, y)
	n, e = Preadv2(fd, vectors(x), -2, 0)
	testutil.MustTrue(t, n == 0 && e == syscall.EINVAL, "read at -2: %d, %v", n, e)
}

func TestNoAlloc(t *testing.T) {
	a, b := socketPair(t)
	out, in := vectors(make([]byte, 100), make([]byte, 200)),
		vectors(make([]byte, 150), make([]byte, 150))
	buf := make([]byte, 300)
	if n := testing.AllocsPerRun(100, func() {
		if n, e := Sendmsg(a, out, 0); n != 300 || e != 0 {
			t.Fatal(n, e)
		}
		if n, e := Recvmsg(b, in, 0); n != 300 || e != 0 {
			t.Fatal(n, e)
		}
		if n, e := Send(a, buf, 0); n != 300 || e != 0 {
			t.Fatal(n, e)
		}
		if n, e := Recv(b, buf, 0); n != 300 || e != 0 {
			t.Fatal(n, e)
		}
		if _, e := Recv(b, buf, 0); e != syscall.EAGAIN {
			t.Fatal(e)
		}
	}); n != 0 {
		t.Errorf("%v allocations", n)
	}
}

func BenchmarkSendRecv(b *testing.B) {
	x, y := socketPair(b)
	out, in := vectors(make([]byte, 64)), vectors(make([]byte, 64))
	b.ReportAllocs()
	for b.Loop() {
		Sendmsg(x, out, 0)
		Recvmsg(y, in, 0)
	}
}

// TestEthtoolHeaders compares this package with linux/ethtool.h.
func TestEthtoolHeaders(t *testing.T) {
	testutil.HeadersAgree(t, []string{"linux/types.h", "linux/ethtool.h"},
		map[string]int{
			"ETHTOOL_GSTRINGS": ethtoolGSTRINGS, "ETHTOOL_GRXFH": ethtoolGRXFH,
			"ETHTOOL_GSSET_INFO": ethtoolGSSETINFO, "ETHTOOL_GFEATURES": ethtoolGFEATURES,
			"ETH_SS_FEATURES": ethSSFeatures, "ETH_GSTRING_LEN": ethGStringLen,
			"UDP_V4_FLOW": udpV4Flow, "RXH_L4_B_0_1 | RXH_L4_B_2_3": rxhPorts,
			"sizeof(struct ethtool_get_features_block)":           featureBlock,
			"offsetof(struct ethtool_get_features_block, active)": 8,
			"offsetof(struct ethtool_gfeatures, features)":        featuresHeader,
			"offsetof(struct ethtool_gstrings, data)":             stringsHeader,
			"offsetof(struct ethtool_sset_info, sset_mask)":       8,
			"offsetof(struct ethtool_sset_info, data)":            16,
			"offsetof(struct ethtool_rxnfc, data)":                8,
		})
}

// TestFeaturesOff: the loopback interface has the features of Linux. It always has checksums, so
// that these are never off, and it has no receive queues to choose from.
func TestFeaturesOff(t *testing.T) {
	off := testutil.Value(FeaturesOff("lo", "tx-checksum-ip-generic", "no such feature"))(t)
	testutil.Equal(t, len(off), 0, "features that are off: %v", off)
	testutil.Value(FeaturesOff("lo", "rx-gro"))(t)
	_, err := UDPPortsHashed("lo")
	testutil.Fails(t, err, "not supported", "hash of the loopback interface")
	for _, name := range []string{"none0", "name-that-is-too-long"} {
		_, err := FeaturesOff(name)
		testutil.Fails(t, err, name, "features")
	}
}

// TestAvailableMemory: the limits of control groups apply, including outer groups.
func TestAvailableMemory(t *testing.T) {
	root := t.TempDir()
	write := func(name, text string) {
		t.Helper()
		path := filepath.Join(root, name)
		testutil.Must(t, os.MkdirAll(filepath.Dir(path), 0o700))
		testutil.Must(t, os.WriteFile(path, []byte(text), 0o600))
	}
	expect := func(what string, want int64) {
		t.Helper()
		if n, err := availableMemory(root); n != want || err != nil {
			t.Errorf("%s: %d, %v, want %d", what, n, err, want)
		}
	}
	testutil.True(t, testutil.Err(availableMemory(root)) != nil, "no error without /proc/meminfo")
	write("proc/meminfo", "MemTotal:       10 kB\n")
	testutil.True(t, testutil.Err(availableMemory(root)) != nil, "no error without MemAvailable")
	write("proc/meminfo", "MemTotal:       10 kB\nMemFree:         1 kB\nMemAvailable:    8 kB\n")
	expect("no control groups", 8192)
	write("proc/self/cgroup", "1:name=systemd:/x\n0::/system.slice/target.service\n")
	expect("no limits", 8192)
	group := "sys/fs/cgroup/system.slice/target.service/"
	write(group+"memory.max", "max\n")
	write(group+"memory.current", "1000\n")
	expect("a group without a limit", 8192)
	write("sys/fs/cgroup/system.slice/memory.max", "6000\n")
	write("sys/fs/cgroup/system.slice/memory.current", "2000\n")
	expect("a limit of an outer group", 4000)
	write(group+"memory.max", "900\n")
	expect("a limit that is exceeded", 0)
}

func TestAvailableMemoryHere(t *testing.T) {
	n, err := AvailableMemory()
	testutil.True(t, err == nil && n > 0, "%d, %v", n, err)
}

func TestNodes(t *testing.T) {
	root := t.TempDir()
	write := func(name, text string) {
		t.Helper()
		name = filepath.Join(root, name)
		testutil.Must(t, os.MkdirAll(filepath.Dir(name), 0o755))
		testutil.Must(t, os.WriteFile(name, []byte(text), 0o600))
	}
	write("cpu/cpu3/node1/cpulist", "2-3\n")
	write("cpu/cpu3/topology/core_id", "1\n")
	for online, want := range map[string]int{"0\n": NoNode, "0-1\n": 1, "0,1\n": 1} {
		write("node/online", online)
		testutil.Equal(t, nodeOfCPU(root, 3), want, "nodes %q", online)
		for _, cpu := range []int{-1, 4} {
			testutil.Equal(t, nodeOfCPU(root, cpu), NoNode,
				"nodes %q: CPU %d is on node", online, cpu)
		}
	}
	testutil.Equal(t, nodeOfCPU(filepath.Join(root, "nothing"), 3), NoNode,
		"a machine that does not tell")
	for text, want := range map[string]int{"1\n": 1, "0\n": 0, "-1\n": NoNode, "x": NoNode} {
		write("infiniband/mlx5_0/device/numa_node", text)
		testutil.Equal(t, nodeOfDevice(root, "infiniband", "mlx5_0"), want, "device with %q", text)
	}
	testutil.Equal(t, nodeOfDevice(root, "infiniband", "rxe0"), NoNode, "a device without a bus")
}

// TestNVMeHeaders compares this package with linux/nvme_ioctl.h.
func TestNVMeHeaders(t *testing.T) {
	var c NVMeCommand
	want := map[string]uintptr{
		"NVME_IOCTL_ID": NVMeID, "NVME_IOCTL_ADMIN64_CMD": NVMeAdmin, "NVME_IOCTL_IO64_CMD": NVMeIO,
		"NVME_IOCTL_IO64_CMD_VEC": NVMeIOVec,
		"NVME_URING_CMD_IO":       NVMeUring, "NVME_URING_CMD_IO_VEC": NVMeUringVec,
		"sizeof(struct nvme_passthru_cmd64)": unsafe.Sizeof(c),
	}
	for name, v := range map[string]uintptr{
		"opcode": unsafe.Offsetof(c.Opcode), "nsid": unsafe.Offsetof(c.NSID),
		"cdw2": unsafe.Offsetof(c.CDW2), "cdw3": unsafe.Offsetof(c.CDW3),
		"addr": unsafe.Offsetof(c.addr), "data_len": unsafe.Offsetof(c.dataLen),
		"cdw10": unsafe.Offsetof(c.CDW10),
		"cdw15": unsafe.Offsetof(c.CDW10) + 20, "timeout_ms": unsafe.Offsetof(c.TimeoutMillis),
	} {
		want["offsetof(struct nvme_passthru_cmd64, "+name+")"] = v
		want["offsetof(struct nvme_uring_cmd, "+name+")"] = v
	}
	testutil.HeadersAgree(t, []string{"linux/types.h", "sys/ioctl.h", "linux/nvme_ioctl.h"}, want)
}

func TestNVMeIoctlElsewhere(t *testing.T) {
	f := testutil.Value(os.Open(os.DevNull))(t)
	defer f.Close()
	_, e := NVMeIoctl(int(f.Fd()), NVMeAdmin, &NVMeCommand{Opcode: 6})
	testutil.True(t, e == unix.ENOTTY, "a command for /dev/null: %v", e)
	_, e = NVMeNamespace(int(f.Fd()))
	testutil.True(t, e == unix.ENOTTY, "the namespace of /dev/null: %v", e)
}

// TestLowerPriority: a thread gets a low priority, and keeps an even lower one.
func TestLowerPriority(t *testing.T) {
	for _, nice := range []int{lowNice - 1, lowNice, 19} {
		got, done := 0, make(chan error)
		go func() {
			runtime.LockOSThread() // the thread ends with the goroutine
			err := unix.Setpriority(unix.PRIO_PROCESS, 0, nice)
			if err == nil {
				err = LowerPriority()
			}
			p, _ := unix.Getpriority(unix.PRIO_PROCESS, 0)
			got = 20 - p
			done <- err
		}()
		if err := <-done; err == unix.EACCES {
			t.Skip("the priority of this process is too low: ", err)
		} else {
			testutil.Must(t, err)
		}
		testutil.Equal(t, got, max(nice, lowNice), "after %d", nice)
	}
}

// TestSCSIHeaders compares this package with scsi/sg.h.
func TestSCSIHeaders(t *testing.T) {
	var r scsiRequest
	testutil.HeadersAgree(t, []string{"scsi/sg.h"}, map[string]int{
		"SG_IO": sgIO, "SG_DXFER_FROM_DEV": sgFromDevice,
		"sizeof(sg_io_hdr_t)":                    int(unsafe.Sizeof(r)),
		"offsetof(sg_io_hdr_t, dxfer_direction)": int(unsafe.Offsetof(r.direction)),
		"offsetof(sg_io_hdr_t, mx_sb_len)":       int(unsafe.Offsetof(r.senseMax)),
		"offsetof(sg_io_hdr_t, dxfer_len)":       int(unsafe.Offsetof(r.dataLen)),
		"offsetof(sg_io_hdr_t, dxferp)":          int(unsafe.Offsetof(r.data)),
		"offsetof(sg_io_hdr_t, cmdp)":            int(unsafe.Offsetof(r.cdb)),
		"offsetof(sg_io_hdr_t, sbp)":             int(unsafe.Offsetof(r.sense)),
		"offsetof(sg_io_hdr_t, timeout)":         int(unsafe.Offsetof(r.timeoutMillis)),
		"offsetof(sg_io_hdr_t, status)":          int(unsafe.Offsetof(r.status)),
		"offsetof(sg_io_hdr_t, sb_len_wr)":       int(unsafe.Offsetof(r.senseLen)),
		"offsetof(sg_io_hdr_t, host_status)":     int(unsafe.Offsetof(r.hostStatus)),
		"offsetof(sg_io_hdr_t, driver_status)":   int(unsafe.Offsetof(r.driverStats)),
		"offsetof(sg_io_hdr_t, resid)":           int(unsafe.Offsetof(r.residue)),
	})
}

func TestSCSIReadElsewhere(t *testing.T) {
	f := testutil.Value(os.Open(os.DevNull))(t)
	defer f.Close()
	_, e := SCSIRead(int(f.Fd()), make([]byte, 6), make([]byte, 36))
	testutil.True(t, e == unix.ENOTTY, "a command for /dev/null: %v", e)
}
