package policyfiles

// The files of all dialects as they are written.
type (
	KyvernoDocument = kyvernoDocument
	CIPDocument     = cipDocument
	IVPDocument     = ivpDocument
)
