package policyfiles

import (
	"reflect"

	"github.com/pullgate/pullgate/internal/mechanics/strictyaml"
)

type kyvernoDocument = dialectDocument[kyvernoSpec]

type kyvernoSpec struct {
	ValidationFailureAction *string `json:"validationFailureAction"`
	Background              *bool   `json:"background"`
	WebhookTimeoutSeconds   *int64  `json:"webhookTimeoutSeconds"`
	FailurePolicy           *string `json:"failurePolicy"`
	WebhookConfiguration    *struct {
		FailurePolicy  *string `json:"failurePolicy"`
		TimeoutSeconds *int64  `json:"timeoutSeconds"`
	} `json:"webhookConfiguration"`
	Admission   *bool         `json:"admission"`
	ApplyRules  *string       `json:"applyRules"`
	EmitWarning *bool         `json:"emitWarning"`
	Rules       []kyvernoRule `json:"rules"`
}

type kyvernoRule struct {
	strictyaml.Written
	Name                   string                `json:"name"`
	Match                  *kyvernoMatch         `json:"match"`
	Exclude                *kyvernoMatch         `json:"exclude"`
	SkipBackgroundRequests *bool                 `json:"skipBackgroundRequests"`
	VerifyImages           []kyvernoVerification `json:"verifyImages"`
	ImageVerify            *kyvernoVerification  `json:"imageVerify"` // verifyImages as a mapping
	Context                []kyvernoContext      `json:"context"`
	ImagePaths             []kyvernoImagePath    `json:"imagePaths"`
	// ImageExtractors are image paths by the kind of custom resource.
	ImageExtractors map[string][]kyvernoExtractor `json:"imageExtractors"`
}

type kyvernoMatch struct {
	Resources *kyvernoResources `json:"resources"`
	Any       *[]kyvernoFilter  `json:"any"`
	All       *[]kyvernoFilter  `json:"all"`
}

type kyvernoFilter struct {
	Resources *kyvernoResources `json:"resources"`
}

type kyvernoResources struct {
	Kinds      *[]string `json:"kinds"`
	Namespaces *[]string `json:"namespaces"`
}

type kyvernoVerification struct {
	strictyaml.Written
	Type            *string            `json:"type"`
	ImageReferences []string           `json:"imageReferences"`
	Default         *string            `json:"default"`
	FailureAction   *string            `json:"failureAction"`
	VerifyDigest    *bool              `json:"verifyDigest"`
	MutateDigest    *bool              `json:"mutateDigest"`
	Required        *bool              `json:"required"`
	UseCache        *bool              `json:"useCache"`
	CosignOCI11     *bool              `json:"cosignOCI11"`
	Repository      *string            `json:"repository"`
	Attestors       []kyvernoAttestors `json:"attestors"`
	ImagePaths      []kyvernoImagePath `json:"imagePaths"` // of custom resources
	// Attestations are statements that the image must have, beside the signatures of Attestors.
	Attestations []kyvernoAttestation `json:"attestations"`
	Validate     *kyvernoValidate     `json:"validate"`
	Mutate       *kyvernoMutate       `json:"mutate"`
}

type kyvernoAttestors struct {
	Count   *int64         `json:"count"`
	Entries []kyvernoEntry `json:"entries"`
}

type kyvernoEntry struct {
	strictyaml.Written
	Keys       *kyvernoKey       `json:"keys"`
	Keyless    *kyvernoKeyless   `json:"keyless"`
	Attestor   *kyvernoAttestors `json:"attestor"`
	Repository *string           `json:"repository"`
}

type kyvernoKey struct {
	strictyaml.Written
	PublicKeys         *string       `json:"publicKeys"`
	SignatureAlgorithm *string       `json:"signatureAlgorithm"`
	Rekor              *kyvernoRekor `json:"rekor"`
	CTLog              *kyvernoCTLog `json:"ctlog"`
}

type kyvernoKeyless struct {
	Issuer               *string           `json:"issuer"`
	IssuerRegExp         *string           `json:"issuerRegExp"`
	Subject              *string           `json:"subject"`
	SubjectRegExp        *string           `json:"subjectRegExp"`
	Roots                *string           `json:"roots"`
	AdditionalExtensions map[string]string `json:"additionalExtensions"`
	Rekor                *kyvernoRekor     `json:"rekor"`
	CTLog                *kyvernoCTLog     `json:"ctlog"`
}

type kyvernoRekor struct {
	URL        *string `json:"url"`
	PubKey     *string `json:"pubkey"`
	IgnoreTlog *bool   `json:"ignoreTlog"`
}

type kyvernoCTLog struct {
	IgnoreSCT    *bool   `json:"ignoreSCT"`
	PubKey       *string `json:"pubkey"`
	TSACertChain *string `json:"tsaCertChain"`
}

// What to do instead of what is not supported.
const (
	notYet      = "not supported yet; remove it"
	onlyCluster = "rules about users and API requests are not supported, because a node does not see them; use kinds " +
		"and namespaces"
)

func kyvernoDecoder() *strictyaml.Decoder {
	return &strictyaml.Decoder{RefuseNull: true, Rewrites: map[reflect.Type]func(*strictyaml.Mapping){
		reflect.TypeFor[kyvernoDocument](): ignoreServerFields,
		reflect.TypeFor[kyvernoSpec](): refuse("validationFailureActionOverrides",
			"not supported; write one policy for each action, with namespaces in match"),
		reflect.TypeFor[kyvernoRule](): rewriteRule,
		reflect.TypeFor[kyvernoContext](): refuse("name configMap apiCall imageRegistry variable globalReference",
			"not supported; only imagePaths is"),
		reflect.TypeFor[kyvernoMatch]():     refuse("subjects roles clusterRoles", onlyCluster),
		reflect.TypeFor[kyvernoFilter]():    refuse("subjects roles clusterRoles", onlyCluster),
		reflect.TypeFor[kyvernoExtractor](): refuse("jmesPath", "not supported; write imagePaths"),
		reflect.TypeFor[kyvernoResources](): refuse("name names annotations selector",
			"not supported; use kinds and namespaces",
			"namespaceSelector", "not supported; write the names in namespaces", "operations", onlyCluster),
		reflect.TypeFor[kyvernoVerification](): rewriteVerification,
		reflect.TypeFor[kyvernoAttestors](): refuse("match",
			"belongs to the rule, beside verifyImages; remove it here"),
		reflect.TypeFor[kyvernoAttestation](): rewriteAttestation,
		reflect.TypeFor[kyvernoValidate](): refuse("pattern anyPattern foreach cel podSecurity manifests assert",
			"not supported; write deny with conditions"),
		reflect.TypeFor[kyvernoEntry](): rewriteEntry,
		reflect.TypeFor[kyvernoKey]():   rewriteStaticKey,
	}}
}

func rewriteRule(m *strictyaml.Mapping) {
	refuse("mutate validate generate preconditions celPreconditions", notYet)(m)
	_, isList := m.Fields["imageVerify"].([]any)
	_, isMapping := m.Fields["verifyImages"].(map[any]any)
	_, both := m.Fields["imageVerify"]
	switch {
	case isList || both && m.Fields["verifyImages"] != nil:
		m.Rename("imageVerify", "verifyImages")
	case isMapping:
		m.Rename("verifyImages", "imageVerify")
	}
}

func rewriteVerification(m *strictyaml.Mapping) {
	m.Rename("images", "imageReferences")
	m.Rename("digestVerify", "verifyDigest")
	m.Rename("digestMutate", "mutateDigest")
	m.Rename("attestions", "attestations")
	refuse("key roots subject issuer additionalExtensions", "not supported; write an entry of attestors",
		"skipImageReferences", "not supported; write imageReferences that do not match these images",
		"imageRegistryCredentials", "not supported; pullgate-policyd uses the credentials that the field credentials of "+
			"its configuration selects",
		"annotations", "annotations of signatures are not supported; remove it",
		"image", "not supported; write imageReferences")(m)
}

func rewriteEntry(m *strictyaml.Mapping) {
	m.Rename("staticKey", "keys")
	m.Rename("attestors", "attestor")
	refuse("certificates", "certificates are not supported; write the public key of the certificate in keys.publicKeys",
		"annotations", "annotations of signatures are not supported; remove it")(m)
	if v, ok := m.Fields["keyless"]; ok && v == nil {
		before := len(m.Fields)
		refuse("subject subjectRegExp issuer issuerRegExp roots additionalExtensions rekor ctlog",
			"belongs below keyless; indent it")(m)
		if len(m.Fields) < before {
			delete(m.Fields, "keyless") // its error would be that it has no value
		}
	}
}

func rewriteStaticKey(m *strictyaml.Mapping) {
	m.Rename("key", "publicKeys")
	refuse("kms", "KMS is not supported, because only the registry is asked; write the public key in publicKeys, as "+
		"cosign public-key --key prints it",
		"secret", "references to Secrets are not supported; write the public key in publicKeys")(m)
}
