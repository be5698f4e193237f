// Package inventory lists the block devices of this machine with their health and users, for an
// operator that selects disks to export. It reads sysfs and the health data of drives.
package inventory

import (
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"github.com/nvmf-target/nvmf-target/internal/observed"
	"github.com/nvmf-target/nvmf-target/internal/storage"
	"github.com/nvmf-target/nvmf-target/internal/sys"
)

// disk is a whole block device.
type disk struct {
	observed.Disk
	zoned   string   // the zone model of a zoned device ("host-managed"), "" for others
	numbers []string // "8:0" of the disk and its partitions
}

// notExportable returns why a disk cannot be exported as a whole, "" if it can.
func (d *disk) notExportable() string {
	switch {
	case d.SizeBytes == 0:
		return "no medium"
	case len(d.Uses) > 0:
		return "in use"
	case d.zoned == "host-managed":
		return "host-managed zones"
	}
	return ""
}

// Machine has the sources of the facts.
type Machine struct {
	// Sys and Proc are the mount points of sysfs and procfs.
	Sys, Proc string
	// ByID is the directory in which udev links disks by their identifiers.
	ByID string
	// Ask reads the health of a drive.
	Ask func(d *observed.Disk) Health
}

// Linux returns this machine.
func Linux() Machine {
	return Machine{Sys: "/sys", Proc: "/proc", ByID: "/dev/disk/by-id", Ask: ask}
}

// List returns the disks in the order of their names. users are the namespaces of this target, by
// the numbers ("8:1") of all devices below them.
func (m Machine) List(users map[string][]string) ([]observed.Disk, error) {
	entries, err := os.ReadDir(filepath.Join(m.Sys, "block"))
	if err != nil {
		return nil, fmt.Errorf("block devices: %w", err)
	}
	where := storage.Machine{Sys: m.Sys, Proc: m.Proc}
	mounts, err := where.Mounts()
	if err != nil {
		return nil, err
	}
	processes, paths := where.Processes(), m.paths()
	list := []observed.Disk{}
	for _, e := range entries {
		d := m.disk(e.Name())
		d.Path = paths[d.Name]
		if d.SizeBytes == 0 && d.Bus == "virtual" {
			continue // such as unused loop devices
		}
		ours := map[string]bool{} // users of the disk through its partitions
		for i, n := range slices.Backward(d.numbers) {
			for _, who := range slices.Concat(mounts[n], processes[n]) {
				d.use(who, i)
			}
			for _, who := range users[n] {
				if i > 0 || !ours[who] {
					d.use(who, i)
				}
				ours[who] = true
			}
		}
		slices.Sort(d.Uses)
		if d.NotExportable = d.notExportable(); d.IsDrive() && m.Ask != nil {
			d.Health = m.Ask(&d.Disk)
		}
		list = append(list, d.Disk)
	}
	slices.SortFunc(list, func(a, b observed.Disk) int { return compareNames(a.Name, b.Name) })
	return list, nil
}

// paths returns the first link in ByID to each device: nvme-MODEL_SERIAL before nvme-eui.NUMBER.
func (m Machine) paths() map[string]string {
	paths := map[string]string{}
	links, _ := os.ReadDir(m.ByID) // missing without udev
	for _, l := range links {
		path := filepath.Join(m.ByID, l.Name())
		to, _ := os.Readlink(path)
		if name := filepath.Base(to); paths[name] == "" {
			paths[name] = path
		}
	}
	return paths
}

// use adds a user of the disk (part 0) or of its partition part-1.
func (d *disk) use(who string, part int) {
	if part > 0 {
		who += " (" + d.Partitions[part-1] + ")"
	}
	d.Uses = append(d.Uses, who)
}

// disk reads the properties of a disk from sysfs. Missing ones stay zero.
func (m Machine) disk(name string) *disk {
	dir := filepath.Join(m.Sys, "block", name)
	text := func(file string) string { return sys.Attribute(filepath.Join(dir, file)) }
	number := func(file string) int64 {
		n, _ := sys.Number(filepath.Join(dir, file))
		return n
	}
	d := &disk{numbers: []string{text("dev")}, Disk: observed.Disk{
		Name: name, SizeBytes: number("size") << 9,
		BlockSizeBytes: int(number("queue/logical_block_size")),
		Rotational:     number("queue/rotational") == 1, ReadOnly: number("ro") == 1,
		Model: text("device/model"), Serial: text("device/serial"),
		Partitions: []string{}, Uses: []string{}, Health: fresh(Unknown),
	}}
	// after the header of four bytes
	if vpd, err := os.ReadFile(filepath.Join(dir, "device/vpd_pg80")); err == nil && len(vpd) > 4 {
		d.Serial = strings.TrimSpace(string(vpd[4:]))
	}
	if z := text("queue/zoned"); z != "none" {
		d.zoned = z
	}
	real, _ := filepath.EvalSymlinks(dir)
	transport := text("device/transport")
	paths, _ := filepath.Glob(filepath.Join(dir, "device/nvme[0-9]*/transport"))
	if transport == "" && len(paths) > 0 { // native multipath
		transport = sys.Attribute(paths[0])
	}
	d.Bus = bus(name, real, text("device/vendor"), transport)
	d.holders(dir, 0)
	parts, _ := filepath.Glob(filepath.Join(dir, "*/partition"))
	for _, p := range parts {
		part := filepath.Base(filepath.Dir(p))
		d.Partitions = append(d.Partitions, part)
		d.numbers = append(d.numbers, text(part+"/dev"))
		d.holders(filepath.Dir(p), len(d.Partitions))
	}
	return d
}

// holders adds device-mapper, RAID and bcache devices that use the disk or a partition.
func (d *disk) holders(dir string, part int) {
	list, _ := os.ReadDir(filepath.Join(dir, "holders"))
	for _, h := range list {
		d.use(h.Name(), part)
	}
}

// bus returns the bus of a disk, derived from its place in the device tree.
func bus(name, place, vendor, transport string) string {
	switch {
	case strings.Contains(place, "/devices/virtual/") && !strings.HasPrefix(name, "nvme"):
		return "virtual"
	case strings.HasPrefix(name, "nvme"):
		if transport != "" && transport != "pcie" {
			return "nvme-" + transport
		}
		return "nvme"
	case strings.HasPrefix(name, "vd"):
		return "virtio"
	case strings.HasPrefix(name, "mmcblk"):
		return "mmc"
	case strings.Contains(place, "/usb"):
		return "usb"
	case strings.TrimSpace(vendor) == "ATA":
		return "sata"
	case strings.Contains(place, "/end_device-"):
		return "sas"
	}
	return "scsi"
}

// compareNames sorts sda before sdaa and nvme2n1 before nvme10n1: a shorter name comes first.
func compareNames(a, b string) int {
	letters := func(s string) string {
		return s[:len(s)-len(strings.TrimLeft(s, "abcdefghijklmnopqrstuvwxyz"))]
	}
	if letters(a) == letters(b) && len(a) != len(b) || strings.HasPrefix(a, "sd") &&
		strings.HasPrefix(b, "sd") && len(a) != len(b) {
		return len(a) - len(b)
	}
	return strings.Compare(a, b)
}
