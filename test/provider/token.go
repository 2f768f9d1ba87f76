package main

import (
	"context"
	"crypto/rand"

	"github.com/hashicorp/terraform-plugin-framework/ephemeral"
	"github.com/hashicorp/terraform-plugin-framework/ephemeral/schema"
	"github.com/hashicorp/terraform-plugin-framework/types"
)

// token is the ephemeral resource testing_token: a value that is another one
// each time and never in a plan or state. All begin with "ephemeral-", so that
// tests can search for them.
type token struct{}

type tokenModel struct {
	Value types.String `tfsdk:"value"`
}

func (token) Metadata(_ context.Context, request ephemeral.MetadataRequest, response *ephemeral.MetadataResponse) {
	response.TypeName = request.ProviderTypeName + "_token"
}

func (token) Schema(_ context.Context, _ ephemeral.SchemaRequest, response *ephemeral.SchemaResponse) {
	response.Schema = schema.Schema{
		Description: "A random value that is never stored.",
		Attributes: map[string]schema.Attribute{
			"value": schema.StringAttribute{
				Description: "The value.",
				Computed:    true,
				Sensitive:   true,
			},
		},
	}
}

func (token) Open(ctx context.Context, _ ephemeral.OpenRequest, response *ephemeral.OpenResponse) {
	value := types.StringValue("ephemeral-" + rand.Text())
	response.Diagnostics.Append(response.Result.Set(ctx, &tokenModel{Value: value})...)
}
