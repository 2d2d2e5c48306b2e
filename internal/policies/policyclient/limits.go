package policyclient

import (
	"fmt"

	"google.golang.org/grpc"
	"google.golang.org/grpc/encoding"
	_ "google.golang.org/grpc/encoding/proto" // registers the codec of messages
	"google.golang.org/grpc/mem"
	"google.golang.org/protobuf/encoding/protowire"
)

// The limits of answers. pullgate-policyd parses data from the network and may be compromised, and pullgated runs as
// root. Therefore pullgated accepts no answer that is larger than a correct answer to its request can be.
const (
	maxTexts  = 96 << 10 // bytes of the reasons and audit annotations of an answer
	maxResult = 512      // bytes of one result without these texts and the name of the image
	// maxDigests bounds the digests of a request, and maxSignatures the signatures that an answer lists.
	maxDigests, maxSignatures = 64, 200
	// maxText, maxSigners and maxDigest bound the texts, signers and digest of a result of a verification.
	maxText, maxSigners, maxDigest = 2 << 10, 64, 256
	maxOthers                      = 16 // fields beside the results, also in later versions
)

func (r *ReviewRequest) limits() []grpc.CallOption {
	results, size := 0, maxTexts
	for _, list := range [][]string{r.Images, r.VolumeImages} {
		for _, image := range list {
			results += r.Backends
			size += r.Backends * (len(image) + maxResult)
		}
	}
	return limits(size, results)
}

func (r *VerifyRequest) limits() []grpc.CallOption {
	signatures := r.maxSignatures()
	// the digests of a signature, and its repository
	size := maxTexts + len(r.Requirements)*maxResult + signatures*2*maxResult
	for _, requirement := range r.Requirements {
		size += len(requirement)
	}
	return limits(size, len(r.Requirements)+signatures)
}

func (r *VerifyRequest) maxSignatures() int {
	if r.ListSignatures {
		return maxSignatures
	}
	return 0
}

func limits(size, results int) []grpc.CallOption {
	return []grpc.CallOption{
		grpc.MaxCallRecvMsgSize(size), grpc.ForceCodecV2(&codec{encoding.GetCodecV2("proto"), results + maxOthers}),
	}
}

// A codec refuses an answer with too many fields before it decodes them: two bytes can become a hundred.
type codec struct {
	encoding.CodecV2
	fields int
}

// Unmarshal decodes an answer.
func (c *codec) Unmarshal(data mem.BufferSlice, v any) error {
	answer := data.MaterializeToBuffer(mem.DefaultBufferPool())
	defer answer.Free()
	rest := answer.ReadOnlyData()
	for n := 0; len(rest) > 0; n++ {
		_, _, size := protowire.ConsumeField(rest)
		switch {
		case size < 0:
			return fmt.Errorf("decode an answer: %w", protowire.ParseError(size))
		case n == c.fields:
			return fmt.Errorf("decode an answer: it has more than %d fields", c.fields)
		}
		rest = rest[size:]
	}
	return c.CodecV2.Unmarshal(data, v)
}
