package uring

import (
	"testing"
	"unsafe"

	"github.com/nvmf-target/nvmf-target/internal/testing/testutil"
)

// TestHeaders compares this package with linux/io_uring.h.
func TestHeaders(t *testing.T) {
	var e sqe
	want := map[string]uintptr{
		"offsetof(struct io_uring_sqe, cmd_op)":    unsafe.Offsetof(e.off),
		"offsetof(struct io_uring_sqe, addr)":      unsafe.Offsetof(e.addr),
		"offsetof(struct io_uring_sqe, len)":       unsafe.Offsetof(e.len),
		"offsetof(struct io_uring_sqe, rw_flags)":  unsafe.Offsetof(e.opFlags),
		"offsetof(struct io_uring_sqe, user_data)": unsafe.Offsetof(e.userData),
		"offsetof(struct io_uring_sqe, buf_index)": unsafe.Offsetof(e.bufIndex),
		"offsetof(struct io_uring_sqe, addr3)":     unsafe.Offsetof(e.addr3),
		"offsetof(struct io_uring_sqe, cmd)":       128 - commandRoom,
		"offsetof(struct io_uring_cqe, res)":       unsafe.Offsetof(cqe{}.res),
		"sizeof(struct io_uring_params)":           unsafe.Sizeof(params{}),
		"IORING_OP_URING_CMD":                      opCommand, "IORING_OP_FALLOCATE": opFallocate,
		"IORING_OP_ASYNC_CANCEL": opCancel, "IORING_OP_READ": opRead,
		"IORING_OP_WRITE":      opWrite,
		"IORING_OP_READ_FIXED": opReadFixed, "IORING_OP_WRITE_FIXED": opWriteFixed,
		"IORING_URING_CMD_FIXED": commandFixed,
		"IORING_SETUP_SQE128":    setupSQE128, "IORING_SETUP_CQE32": setupCQE32,
		"IORING_SETUP_SINGLE_ISSUER": setupSingleIssuer,
		"IORING_SETUP_DEFER_TASKRUN": setupDeferTaskrun,
		"IORING_SETUP_CQSIZE":        setupCQSize,
		"IORING_SETUP_R_DISABLED":    setupDisabled, "IORING_SETUP_SUBMIT_ALL": setupSubmitAll,
		"IORING_SETUP_TASKRUN_FLAG": setupTaskrunFlag,
		"IORING_REGISTER_FILES2":    registerFiles2, "IORING_REGISTER_ENABLE_RINGS": registerEnable,
		"IORING_SQ_TASKRUN": sqTaskrun,
	}
	testutil.HeadersAgree(t, []string{"linux/io_uring.h"}, want)
}
