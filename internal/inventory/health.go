package inventory

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"os"
	"slices"
	"strconv"
	"strings"

	"github.com/dswarbrick/smart/drivedb"
	"github.com/dswarbrick/smart/scsi"

	"github.com/nvmf-target/nvmf-target/internal/observed"
	"github.com/nvmf-target/nvmf-target/internal/passthru"
	"github.com/nvmf-target/nvmf-target/nvme"
)

// Health is the health that a drive reports.
type Health = observed.DiskHealth

// The states, from good to bad; Unknown is for disks that were not asked.
const (
	Unknown = "unknown"
	Good    = "good"
	Warning = "warning"
	Failing = "failing"
)

var states = []string{Unknown, Good, Warning, Failing}

// fresh is a Health without problems.
func fresh(state string) Health {
	return Health{State: state, Notes: []string{}, PowerOnHours: -1, UsedPercent: -1}
}

func unknown(why string) Health {
	h := fresh(Unknown)
	note(&h, Unknown, "%s", why)
	return h
}

// note adds a finding and worsens the state to at least state.
func note(h *Health, state, format string, args ...any) {
	h.State = states[max(slices.Index(states, h.State), slices.Index(states, state))]
	h.Notes = append(h.Notes, fmt.Sprintf(format, args...))
}

// ask reads the health of a drive.
func ask(d *observed.Disk) Health {
	h, _, err := readHealth(d.Bus, "/dev/"+d.Name)
	switch {
	case errors.Is(err, os.ErrPermission):
		return unknown("only root may ask")
	case errors.Is(err, errNoHealth):
		return unknown("not reported")
	case err != nil:
		return unknown(err.Error())
	}
	return h
}

// readHealth reads the health of a drive, also as log page 02h. It may block for seconds.
func readHealth(bus, device string) (h Health, log *nvme.SMARTLog, err error) {
	switch bus {
	case "nvme":
		if log, err = readNVMe(device); err == nil {
			h = nvmeHealth(log)
		}
		return h, log, err
	case "sata":
		h, err = askATA(device)
	default:
		h, err = askSCSI(device)
	}
	if err != nil {
		return Health{}, nil, err
	}
	return h, smart(&h), nil
}

// readNVMe reads log page 02h, which the library only prints, without the status of the command.
func readNVMe(device string) (*nvme.SMARTLog, error) {
	f, err := os.Open(device)
	if err != nil {
		return nil, err
	}
	defer f.Close()
	return passthru.SMART(passthru.FD(f.Fd()))
}

// nvmeHealth evaluates log page 02h (Base section 5.1.12.1.3).
func nvmeHealth(l *nvme.SMARTLog) Health {
	hours, _ := l.PowerOnHours.Uint64()
	h := fresh(Good)
	h.PowerOnHours, h.UsedPercent = int64(hours), int(l.PercentageUsed)
	if l.Temperature > 0 {
		h.Celsius = int(l.Temperature) - kelvin
	}
	for _, w := range []struct {
		bit         uint8
		state, text string
	}{
		{nvme.SMARTReliability, Failing, "reliability degraded"},
		{nvme.SMARTReadOnly, Failing, "read-only"},
		{nvme.SMARTSpareLow, Warning, fmt.Sprintf("%d%% spare left", l.AvailableSpare)},
		{nvme.SMARTTemperature, Warning, "temperature out of range"},
		{nvme.SMARTVolatileMemory, Warning, "volatile memory backup failed"},
	} {
		if l.CriticalWarning&w.bit != 0 {
			note(&h, w.state, "%s", w.text)
		}
	}
	if n, _ := l.MediaErrors.Uint64(); n > 0 {
		note(&h, Warning, "%d media errors", n)
	}
	if l.PercentageUsed >= 100 {
		note(&h, Warning, "worn out")
	}
	return h
}

// askATA asks a SATA drive through the SCSI layer.
func askATA(device string) (h Health, err error) {
	defer func() {
		if p := recover(); p != nil { // the library does not check lengths
			h, err = Health{}, fmt.Errorf("SMART data makes no sense: %v", p)
		}
	}()
	// Not OpenSCSIAutodetect: it leaks the descriptor if it fails. sysfs knows ATA drives.
	dev := scsi.SATDevice{SCSIDevice: scsi.SCSIDevice{Name: device}}
	if err := dev.Open(); err != nil {
		return Health{}, err
	}
	defer func() { _ = dev.Close() }()
	var out bytes.Buffer
	err = dev.PrintSMART(&drivedb.DriveDb{Drives: []drivedb.DriveModel{attributes}}, &out)
	h, found := ataHealth(&out)
	if found {
		return h, nil // later errors do not matter
	}
	return Health{}, errors.Join(errors.New("no SMART attributes"), err)
}

// attributes makes the library print the raw attributes of ataHealth as plain numbers.
var attributes = func() drivedb.DriveModel {
	m := drivedb.DriveModel{Family: "DEFAULT", Presets: map[string]drivedb.AttrConv{}}
	for _, id := range []string{"5", "9", "187", "190", "194", "197", "198"} {
		m.Presets[id] = drivedb.AttrConv{Conv: "raw48", Name: "Attribute_" + id}
	}
	return m
}()

// ataHealth reads the table of attributes printed by the library: ID NAME FLAG VALUE WORST RESERVED
// TYPE UPDATED RAW. found reports whether there was one. Thresholds of the vendor are ignored; the
// counters of bad sectors, which all vendors share, decide.
func ataHealth(r io.Reader) (h Health, found bool) {
	h = fresh(Good)
	text, err := io.ReadAll(r)
	if err != nil {
		return h, false
	}
	for line := range strings.Lines(string(text)) {
		f := strings.Fields(line)
		if len(f) != 9 {
			continue
		}
		id, err1 := strconv.Atoi(f[0])
		raw, err2 := strconv.ParseUint(f[8], 10, 64)
		if err1 != nil || err2 != nil {
			continue
		}
		found = true
		switch id {
		case 5:
			if raw &= 0xFFFFFFFF; raw > 0 {
				note(&h, Warning, "%d reallocated sectors", raw)
			}
		case 9: // some vendors have minutes in the upper bytes
			h.PowerOnHours = int64(raw & 0xFFFFFF)
		case 187:
			if raw > 0 {
				note(&h, Warning, "%d uncorrectable errors", raw)
			}
		// Airflow temperature, which not all drives have, and temperature of the drive. The upper
		// bytes have the minimum and maximum.
		case 190, 194:
			if t := int(int8(raw)); id == 194 || h.Celsius == 0 {
				h.Celsius = t
			}
		case 197:
			if raw > 0 {
				note(&h, Failing, "%d sectors cannot be read", raw)
			}
		case 198:
			if raw > 0 {
				note(&h, Failing, "%d sectors are uncorrectable", raw)
			}
		}
	}
	return h, found
}
