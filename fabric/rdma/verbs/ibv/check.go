//go:build cgo

package ibv

// #include "bind.h"
import "C"

import (
	"unsafe"

	"github.com/nvmf-target/nvmf-target/fabric/rdma/verbs"
)

// Package verbs has the constants and layouts of the C headers. A difference does not compile,
// because an index other than 0 is out of range.
type same = [1]struct{}

var (
	_ = same{}[verbs.AccessLocalWrite^C.IBV_ACCESS_LOCAL_WRITE]
	_ = same{}[verbs.AccessRemoteWrite^C.IBV_ACCESS_REMOTE_WRITE]
	_ = same{}[verbs.AccessRemoteRead^C.IBV_ACCESS_REMOTE_READ]

	_ = same{}[verbs.WRRDMAWrite^C.IBV_WR_RDMA_WRITE]
	_ = same{}[verbs.WRSend^C.IBV_WR_SEND]
	_ = same{}[verbs.WRRDMARead^C.IBV_WR_RDMA_READ]
	_ = same{}[verbs.WRSendWithInv^C.IBV_WR_SEND_WITH_INV]

	_ = same{}[verbs.SendSignaled^C.IBV_SEND_SIGNALED]
	_ = same{}[verbs.SendInline^C.IBV_SEND_INLINE]

	_ = same{}[verbs.WCSuccess^C.IBV_WC_SUCCESS]
	_ = same{}[verbs.WCLocLenErr^C.IBV_WC_LOC_LEN_ERR]
	_ = same{}[verbs.WCLocQPOpErr^C.IBV_WC_LOC_QP_OP_ERR]
	_ = same{}[verbs.WCLocProtErr^C.IBV_WC_LOC_PROT_ERR]
	_ = same{}[verbs.WCWRFlushErr^C.IBV_WC_WR_FLUSH_ERR]
	_ = same{}[verbs.WCLocAccessErr^C.IBV_WC_LOC_ACCESS_ERR]
	_ = same{}[verbs.WCRemInvReqErr^C.IBV_WC_REM_INV_REQ_ERR]
	_ = same{}[verbs.WCRemAccessErr^C.IBV_WC_REM_ACCESS_ERR]
	_ = same{}[verbs.WCRemOpErr^C.IBV_WC_REM_OP_ERR]
	_ = same{}[verbs.WCRetryExcErr^C.IBV_WC_RETRY_EXC_ERR]
	_ = same{}[verbs.WCRNRRetryExcErr^C.IBV_WC_RNR_RETRY_EXC_ERR]
	_ = same{}[verbs.WCGeneralErr^C.IBV_WC_GENERAL_ERR]

	_ = same{}[verbs.WCSend^C.IBV_WC_SEND]
	_ = same{}[verbs.WCRDMAWrite^C.IBV_WC_RDMA_WRITE]
	_ = same{}[verbs.WCRDMARead^C.IBV_WC_RDMA_READ]
	_ = same{}[verbs.WCRecv^C.IBV_WC_RECV]
	_ = same{}[verbs.WCWithInv^C.IBV_WC_WITH_INV]

	_ = same{}[verbs.EventAddrResolved^C.RDMA_CM_EVENT_ADDR_RESOLVED]
	_ = same{}[verbs.EventAddrError^C.RDMA_CM_EVENT_ADDR_ERROR]
	_ = same{}[verbs.EventRouteResolved^C.RDMA_CM_EVENT_ROUTE_RESOLVED]
	_ = same{}[verbs.EventConnectRequest^C.RDMA_CM_EVENT_CONNECT_REQUEST]
	_ = same{}[verbs.EventConnectError^C.RDMA_CM_EVENT_CONNECT_ERROR]
	_ = same{}[verbs.EventUnreachable^C.RDMA_CM_EVENT_UNREACHABLE]
	_ = same{}[verbs.EventRejected^C.RDMA_CM_EVENT_REJECTED]
	_ = same{}[verbs.EventEstablished^C.RDMA_CM_EVENT_ESTABLISHED]
	_ = same{}[verbs.EventDisconnected^C.RDMA_CM_EVENT_DISCONNECTED]
	_ = same{}[verbs.EventDeviceRemoval^C.RDMA_CM_EVENT_DEVICE_REMOVAL]
	_ = same{}[verbs.EventAddrChange^C.RDMA_CM_EVENT_ADDR_CHANGE]
	_ = same{}[verbs.EventTimewaitExit^C.RDMA_CM_EVENT_TIMEWAIT_EXIT]

	_ = same{}[verbs.AsyncCQErr^C.IBV_EVENT_CQ_ERR]
	_ = same{}[verbs.AsyncQPFatal^C.IBV_EVENT_QP_FATAL]
	_ = same{}[verbs.AsyncQPReqErr^C.IBV_EVENT_QP_REQ_ERR]
	_ = same{}[verbs.AsyncQPAccessErr^C.IBV_EVENT_QP_ACCESS_ERR]
	_ = same{}[verbs.AsyncPathMigErr^C.IBV_EVENT_PATH_MIG_ERR]
	_ = same{}[verbs.AsyncDeviceFatal^C.IBV_EVENT_DEVICE_FATAL]
	_ = same{}[verbs.AsyncPortActive^C.IBV_EVENT_PORT_ACTIVE]
	_ = same{}[verbs.AsyncPortErr^C.IBV_EVENT_PORT_ERR]
	_ = same{}[verbs.AsyncSRQErr^C.IBV_EVENT_SRQ_ERR]
	_ = same{}[verbs.AsyncQPLastWQEReached^C.IBV_EVENT_QP_LAST_WQE_REACHED]
	_ = same{}[verbs.AsyncWQFatal^C.IBV_EVENT_WQ_FATAL]

	_ = same{}[unsafe.Sizeof(verbs.SGE{})^C.sizeof_struct_ibv_sge]
	_ = same{}[unsafe.Offsetof(verbs.SGE{}.Addr)^unsafe.Offsetof(C.struct_ibv_sge{}.addr)]
	_ = same{}[unsafe.Offsetof(verbs.SGE{}.Length)^unsafe.Offsetof(C.struct_ibv_sge{}.length)]
	_ = same{}[unsafe.Offsetof(verbs.SGE{}.LKey)^unsafe.Offsetof(C.struct_ibv_sge{}.lkey)]

	_ = same{}[unsafe.Sizeof(verbs.SendWR{})^C.sizeof_struct_vb_send_wr]
	_ = same{}[unsafe.Offsetof(verbs.SendWR{}.WRID)^unsafe.Offsetof(C.struct_vb_send_wr{}.wr_id)]
	_ = same{}[unsafe.Offsetof(verbs.SendWR{}.RemoteAddr)^unsafe.Offsetof(
		C.struct_vb_send_wr{}.remote_addr)]
	_ = same{}[unsafe.Offsetof(verbs.SendWR{}.Opcode)^unsafe.Offsetof(C.struct_vb_send_wr{}.opcode)]
	_ = same{}[unsafe.Offsetof(verbs.SendWR{}.Flags)^unsafe.Offsetof(C.struct_vb_send_wr{}.flags)]
	_ = same{}[unsafe.Offsetof(verbs.SendWR{}.FirstSGE)^unsafe.Offsetof(
		C.struct_vb_send_wr{}.first_sge)]
	_ = same{}[unsafe.Offsetof(verbs.SendWR{}.NumSGE)^unsafe.Offsetof(
		C.struct_vb_send_wr{}.num_sge)]
	_ = same{}[unsafe.Offsetof(verbs.SendWR{}.RKey)^unsafe.Offsetof(C.struct_vb_send_wr{}.rkey)]
	_ = same{}[unsafe.Offsetof(verbs.SendWR{}.InvalidateRKey)^unsafe.Offsetof(
		C.struct_vb_send_wr{}.invalidate_rkey)]

	_ = same{}[unsafe.Sizeof(verbs.RecvWR{})^C.sizeof_struct_vb_recv_wr]
	_ = same{}[unsafe.Offsetof(verbs.RecvWR{}.NumSGE)^unsafe.Offsetof(
		C.struct_vb_recv_wr{}.num_sge)]
	_ = same{}[unsafe.Offsetof(verbs.RecvWR{}.SGE)^unsafe.Offsetof(C.struct_vb_recv_wr{}.sge)]

	_ = same{}[unsafe.Sizeof(verbs.WC{})^C.sizeof_struct_vb_wc]
	_ = same{}[unsafe.Offsetof(verbs.WC{}.Status)^unsafe.Offsetof(C.struct_vb_wc{}.status)]
	_ = same{}[unsafe.Offsetof(verbs.WC{}.Opcode)^unsafe.Offsetof(C.struct_vb_wc{}.opcode)]
	_ = same{}[unsafe.Offsetof(verbs.WC{}.VendorErr)^unsafe.Offsetof(C.struct_vb_wc{}.vendor_err)]
	_ = same{}[unsafe.Offsetof(verbs.WC{}.ByteLen)^unsafe.Offsetof(C.struct_vb_wc{}.byte_len)]
	_ = same{}[unsafe.Offsetof(verbs.WC{}.QPNum)^unsafe.Offsetof(C.struct_vb_wc{}.qp_num)]
	_ = same{}[unsafe.Offsetof(verbs.WC{}.Flags)^unsafe.Offsetof(C.struct_vb_wc{}.flags)]
	_ = same{}[unsafe.Offsetof(verbs.WC{}.InvalidatedRKey)^unsafe.Offsetof(
		C.struct_vb_wc{}.invalidated_rkey)]
)
