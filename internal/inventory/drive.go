package inventory

import (
	"fmt"
	"os"
	"path/filepath"
	"strings"

	"github.com/nvmf-target/nvmf-target/nvme"
)

// Drive is hardware with health data. Any goroutine may use it.
type Drive struct {
	m Machine
	d *disk // as found by DriveOf
}

// DriveOf returns the drive of the block device with this number ("8:1"), a whole disk or a
// partition. It returns nil if the device does not report its health.
func (m Machine) DriveOf(number string) *Drive {
	place, err := filepath.EvalSymlinks(filepath.Join(m.Sys, "dev/block", number))
	if err != nil {
		return nil
	}
	if _, err := os.Stat(filepath.Join(place, "partition")); err == nil {
		place = filepath.Dir(place)
	}
	d := m.disk(filepath.Base(place))
	if !d.IsDrive() {
		return nil
	}
	return &Drive{m, d}
}

// ID identifies the drive by bus, model and serial number, or by its name without the latter.
func (d *Drive) ID() string {
	if d.d.Serial == "" {
		return d.d.Name
	}
	return strings.Join([]string{d.d.Bus, d.d.Model, d.d.Serial}, " ")
}

// Counts reports whether SMART has the amounts read and written.
func (d *Drive) Counts() bool { return d.d.Bus == "nvme" }

// SMART reads the health, in the form of the NVMe log page. It may block for some seconds.
func (d *Drive) SMART() (*nvme.SMARTLog, error) {
	device, err := d.device()
	if err != nil {
		return nil, err
	}
	_, log, err := readHealth(d.d.Bus, device)
	return log, err
}

// device returns the current path of the drive, which may have another name after it was offline.
func (d *Drive) device() (string, error) {
	names := []string{d.d.Name}
	entries, err := os.ReadDir(filepath.Join(d.m.Sys, "block"))
	if err != nil {
		return "", err
	}
	for _, e := range entries {
		names = append(names, e.Name())
	}
	for _, name := range names {
		if now := (&Drive{d.m, d.m.disk(name)}); now.d.Bus == d.d.Bus && now.ID() == d.ID() {
			return "/dev/" + name, nil
		}
	}
	return "", fmt.Errorf("%s: %w", d.ID(), os.ErrNotExist)
}

// smart returns a health as log page 02h (Base section 5.1.12.1.3). A failing drive counts as
// unreliable, an unknown spare as full.
func smart(h *Health) *nvme.SMARTLog {
	l := &nvme.SMARTLog{AvailableSpare: 100}
	if h.Celsius != 0 {
		l.Temperature = uint16(h.Celsius + kelvin)
	}
	if h.PowerOnHours >= 0 {
		l.PowerOnHours = nvme.MakeUint128(uint64(h.PowerOnHours))
	}
	if h.UsedPercent >= 0 {
		l.PercentageUsed = uint8(min(h.UsedPercent, 255))
	}
	if h.State == Failing {
		l.CriticalWarning = nvme.SMARTReliability
	}
	return l
}

const kelvin = 273
