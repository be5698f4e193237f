package convert

import (
	"fmt"
	"math"
	"regexp"
	"strings"
)

// bdev is a block device of SPDK that has a counterpart here, or passes everything on to one.
type bdev struct {
	storage
	// file is the path of a file or device; its backend is chosen after a look at it.
	file string
	at   *value
	// pci is the address of an NVMe drive. Its namespaces are the bdevs NAMEn1, NAMEn2 and so on.
	pci string
	// base is the bdev to which everything is passed on.
	base string
}

// maxBases is the maximum number of bdevs on top of each other.
const maxBases = 8

var bdevMethods = map[string]method{
	"bdev_aio_create":             (*spdk).bdevFile,
	"bdev_uring_create":           (*spdk).bdevFile,
	"bdev_xnvme_create":           (*spdk).bdevFile,
	"bdev_malloc_create":          bdevMemory("ram"),
	"bdev_null_create":            bdevMemory("null"),
	"bdev_nvme_attach_controller": (*spdk).bdevNVMe,
	"bdev_passthru_create":        (*spdk).bdevPassthru,
	"bdev_rbd_create":             (*spdk).bdevRBD,
	"bdev_rbd_register_cluster":   (*spdk).rbdCluster,
	"bdev_set_qos_limit":          (*spdk).bdevLimits,
}

// isBdev reports whether an RPC makes a bdev without a counterpart. It records nothing about it.
func (s *spdk) isBdev(method string, rpc *value) bool {
	return strings.HasPrefix(method, "bdev_") && strings.HasSuffix(method, "_create") &&
		s.object(rpc, "params", "").member("name") != nil
}

func (s *spdk) add(p *value, path string, b *bdev) {
	name := s.required(p, "name", path)
	if old := s.bdevs[name]; old != nil { // bdev_set_qos_limit came first
		b.iops, b.bandwidth = old.iops, old.bandwidth
	}
	s.bdevs[name] = b
}

// bdevFile is a file or a device (module/bdev/aio, module/bdev/uring).
func (s *spdk) bdevFile(p *value, path string) {
	name := s.required(p, "filename", path)
	b := &bdev{file: name, at: p}
	b.blockSize = s.number(p, "block_size", path, 0)
	b.readOnly = s.flag(p, "readonly", path, false)
	b.uuid = identifier(s.str(p, "uuid", path))
	for _, name := range []string{"fallocate", "nowait", "io_mechanism", "conserve_cpu"} {
		p.member(name)
	}
	s.add(p, path, b)
}

// bdevMemory reads a bdev in memory, of a backend.
func bdevMemory(backend string) method {
	return func(s *spdk, p *value, path string) {
		st := storage{
			backend: backend, blockSize: s.number(p, "block_size", path, 512),
			uuid: identifier(s.str(p, "uuid", path)),
		}
		blocks := s.number(p, "num_blocks", path, 0)
		if st.blockSize != 0 && blocks > math.MaxInt64/st.blockSize {
			s.problem(p, path+"num_blocks", "is too large", "Correct it.")
			return
		}
		st.size = blocks * st.blockSize
		if s.number(p, "md_size", path, 0) > 0 {
			s.note(p, "metadata of bdev %s (md_size) has no counterpart",
				short(s.str(p, "name", path)))
		}
		if backend == "ram" {
			st.comment = "its content is not taken over"
		}
		s.add(p, path, &bdev{storage: st})
		p.ignore() // sizes for tuning, and metadata settings
	}
}

// bdevNVMe attaches a drive, or a namespace of another target (module/bdev/nvme).
func (s *spdk) bdevNVMe(p *value, path string) {
	b := &bdev{}
	if strings.EqualFold(s.required(p, "trtype", path), "pcie") {
		b.pci = s.required(p, "traddr", path)
	}
	s.add(p, path, b)
	p.ignore() // the transport address
}

func (s *spdk) bdevPassthru(p *value, path string) {
	b := &bdev{base: s.required(p, "base_bdev_name", path)}
	b.uuid = identifier(s.str(p, "uuid", path))
	s.add(p, path, b)
}

// rbdCluster is a Ceph cluster that bdevs name (module/bdev/rbd).
func (s *spdk) rbdCluster(p *value, path string) {
	c := ceph{
		conf: s.str(p, "config_file", path), user: s.str(p, "user_id", path),
		keyring: s.str(p, "key_file", path),
	}
	s.clusters[s.required(p, "name", path)] = c
	s.noteSettings(p, "config_param")
	p.ignore() // processors
}

// bdevRBD is an image of Ceph (module/bdev/rbd).
func (s *spdk) bdevRBD(p *value, path string) {
	st := storage{
		backend: "rbd", blockSize: s.number(p, "block_size", path, 512),
		readOnly: s.flag(p, "read_only", path, false),
		uuid:     identifier(s.str(p, "uuid", path)),
		image:    s.required(p, "pool_name", path),
		ceph:     ceph{user: s.str(p, "user_id", path)},
	}
	if space := s.str(p, "namespace_name", path); space != "" {
		st.image += "/" + space
	}
	st.image += "/" + s.required(p, "rbd_name", path)
	if name := s.str(p, "cluster_name", path); name != "" {
		st.ceph = s.clusters[name]
	}
	s.noteSettings(p, "config")
	if s.str(p, "encryption_format", path) == "" {
		s.add(p, path, &bdev{storage: st})
	} // otherwise hosts would read encrypted data
	p.ignore() // the passphrase
}

// noteSettings notes that settings of Ceph are not in a file.
func (s *spdk) noteSettings(p *value, name string) {
	if m := p.member(name); m != nil {
		s.note(m, "settings of Ceph, which belong to ceph.conf here (key ceph.conf)")
	}
}

// bdevLimits sets limits; bandwidth is in units of 1 MiB (spdk_bdev_set_qos_rate_limits).
func (s *spdk) bdevLimits(p *value, path string) {
	name := s.required(p, "name", path)
	b := s.bdevs[name]
	if b == nil {
		b = &bdev{}
		s.bdevs[name] = b
	}
	b.iops = s.number(p, "rw_ios_per_sec", path, 0)
	if mib := s.number(p, "rw_mbytes_per_sec", path, 0); mib < 1<<32 {
		b.bandwidth = mib << 20
	}
}

// ofDrive matches the name of a bdev of an NVMe drive: the name of the controller, n and the NSID.
var ofDrive = regexp.MustCompile(`^(.+)n([0-9]+)$`)

// storage returns the storage of a bdev, or why there is no counterpart.
func (s *spdk) storage(v *value, name string) (st storage, why string) {
	var iops, bandwidth uint64
	uuid, readOnly := "", false
	for depth := range maxBases {
		b := s.bdevs[name]
		if b != nil && depth == 0 {
			uuid = b.uuid // of the bdev on top
		}
		readOnly = readOnly || b != nil && b.readOnly
		if b != nil && b.iops > 0 {
			iops = b.iops
		}
		if b != nil && b.bandwidth > 0 {
			bandwidth = b.bandwidth
		}
		if b != nil && b.base != "" {
			name = b.base
			continue
		}
		switch {
		case b != nil && b.file != "":
			st, why = s.spdkStorage(b.at, b.file, b.blockSize)
		case b != nil && b.backend != "":
			st = b.storage
		default:
			st, why = s.drive(name)
		}
		st.iops, st.bandwidth, st.uuid, st.readOnly = iops, bandwidth, uuid, readOnly
		return st, why
	}
	return st, "too many bdevs stand on each other"
}

func (s *spdk) drive(name string) (st storage, why string) {
	m := ofDrive.FindStringSubmatch(name)
	if m == nil || s.bdevs[m[1]] == nil {
		return st, "make it a block device of Linux (LVM, mdadm, cryptsetup, nvme connect) " +
			"and export that with backend: block"
	}
	pci := s.bdevs[m[1]].pci
	if pci == "" {
		return st, "it is at another target: use nvme connect, and export the device with " +
			"backend: block"
	}
	return storage{
		backend: "nvme",
		path:    fmt.Sprintf("/dev/disk/by-path/pci-%s-nvme-%s", pci, m[2]),
		comment: "give the drive back to the kernel first: scripts/setup.sh reset of SPDK",
	}, ""
}
