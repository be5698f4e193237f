package inventory

import (
	"encoding/binary"
	"errors"
	"fmt"
	"os"

	"github.com/nvmf-target/nvmf-target/internal/sys"
)

// dswarbrick/smart knows no health of SCSI drives; these are log pages (SPC-4, 6.6 and 7.3).
const (
	scsiLogSense     = 0x4D
	scsiCumulative   = 1 << 6 // PC: the values since the log was cleared
	pageTemperature  = 0x0D   // SPC-4 section 7.3.21
	pageSolidState   = 0x11   // SBC-4 section 6.4.9
	pageScan         = 0x15   // background scan, SBC-4 section 6.4.2
	pageExceptions   = 0x2F   // informational exceptions, SPC-4 section 7.3.8
	ascWarning       = 0x0B   // SPC-4 annex F
	ascPrediction    = 0x5D   // failure prediction threshold exceeded
	noTemperature    = 0xFF
	scsiHeader       = 4 // of a page and of a parameter
	scsiLogSize      = 252
	scsiPageCodeMask = 0x3F
	// ILLEGAL REQUEST, SPC-4 section 4.5.6: no such page, or no such command
	senseIllegal   = 5
	senseAttention = 6 // UNIT ATTENTION
)

// errNoHealth is the error of disks other than drives, such as disks of virtual machines or arrays.
var errNoHealth = errors.New("it does not report its health")

// senseKey returns the sense key of sense data (SPC-4 sections 4.5.2 and 4.5.3), or 0.
func senseKey(sense []byte) uint8 {
	if len(sense) < 3 {
		return 0
	}
	switch sense[0] & 0x7F {
	case 0x70, 0x71: // fixed format
		return sense[2] & 0xF
	case 0x72, 0x73: // descriptor format
		return sense[1] & 0xF
	}
	return 0
}

// scsiRead sends a SCSI command that reads data; see sys.SCSIRead.
type scsiRead func(cdb, data []byte) (sys.SCSIResult, error)

// askSCSI asks a SAS drive or any other SCSI disk.
func askSCSI(device string) (Health, error) {
	f, err := os.Open(device)
	if err != nil {
		return Health{}, err
	}
	defer f.Close()
	return scsiHealth(func(cdb, data []byte) (sys.SCSIResult, error) {
		r, e := sys.SCSIRead(int(f.Fd()), cdb, data)
		if e != 0 {
			return r, e
		}
		return r, nil
	})
}

// scsiHealth evaluates informational exceptions, which drives must have, temperature and wear.
func scsiHealth(read scsiRead) (Health, error) {
	h := fresh(Good)
	err := logParameters(read, pageExceptions, func(code uint16, v []byte) {
		if code != 0 || len(v) < 2 {
			return
		}
		switch asc, ascq := v[0], v[1]; asc {
		case 0:
		case ascPrediction:
			note(&h, Failing, "predicts its failure (%02X/%02Xh)", asc, ascq)
		case ascWarning:
			note(&h, Warning, "warns (%02X/%02Xh)", asc, ascq)
		default:
			note(&h, Warning, "reports an exception (%02X/%02Xh)", asc, ascq)
		}
		if len(v) > 2 && v[2] != noTemperature {
			h.Celsius = int(v[2])
		}
	})
	if err != nil {
		return Health{}, err
	}
	limit := 0
	err = logParameters(read, pageTemperature, func(code uint16, v []byte) {
		switch {
		case len(v) < 2 || v[1] == noTemperature:
		case code == 0:
			h.Celsius = int(v[1])
		case code == 1: // the reference temperature, its maximum
			limit = int(v[1])
		}
	})
	if err == nil && limit > 0 && h.Celsius > limit {
		note(&h, Warning, "hotter than its %d °C", limit)
	}
	_ = logParameters(read, pageScan, func(code uint16, v []byte) {
		if code == 0 && len(v) >= 4 {
			h.PowerOnHours = int64(binary.BigEndian.Uint32(v)) / 60
		}
	})
	_ = logParameters(read, pageSolidState, func(code uint16, v []byte) {
		if code == 1 && len(v) >= 4 {
			h.UsedPercent = int(v[3])
		}
	})
	if h.UsedPercent >= 100 {
		note(&h, Warning, "worn out")
	}
	return h, nil
}

// logParameters reads a log page and calls fn with each parameter.
func logParameters(read scsiRead, page uint8, fn func(code uint16, value []byte)) error {
	b := make([]byte, scsiLogSize)
	cdb := []byte{scsiLogSense, 0, scsiCumulative | page, 0, 0, 0, 0, 0, scsiLogSize, 0}
	r, err := read(cdb, b)
	for tries := 3; err == nil && r.Status != 0 && senseKey(r.Sense) == senseAttention &&
		tries > 0; tries-- {
		// the first answer only reported a change, such as a reset
		r, err = read(cdb, b)
	}
	switch {
	case err != nil:
		return fmt.Errorf("log page %02Xh: %w", page, err)
	case r.Status != 0 && senseKey(r.Sense) == senseIllegal:
		return fmt.Errorf("log page %02Xh: %w (sense % x)", page, errNoHealth, r.Sense)
	case r.Status != 0 || r.Transport != 0:
		return fmt.Errorf(
			"log page %02Xh: the drive answers with status %02Xh, sense % x (transport %x)", page,
			r.Status, r.Sense, r.Transport)
	case r.N < scsiHeader || b[0]&scsiPageCodeMask != page:
		return fmt.Errorf("log page %02Xh: %w", page, errors.New("the answer is another page"))
	}
	b = b[scsiHeader:min(r.N, scsiHeader+int(binary.BigEndian.Uint16(b[2:])))]
	for len(b) >= scsiHeader {
		n := scsiHeader + int(b[3])
		if n > len(b) {
			return fmt.Errorf("log page %02Xh: a parameter is cut off", page)
		}
		fn(binary.BigEndian.Uint16(b), b[scsiHeader:n])
		b = b[n:]
	}
	return nil
}
