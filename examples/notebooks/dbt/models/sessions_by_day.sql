select date, count(distinct session_id) as sessions, count(*) as parts
from {{ source('hypaware', 'ai_gateway_messages') }}
where provider_type is distinct from 'gateway'
group by date
order by date
